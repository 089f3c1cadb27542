"""Metrics of one gateway: one registry of our own. What the router knows is read when it is scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

PREFIX = "cosmos3_reasoner"
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_SESSION_TEXT = (
    "Accepted questions by replica and by what became of their session; `expired` counts sessions, of all gateways."
)


@dataclass(frozen=True, slots=True)
class Figures:
    """The gateway at one moment.

    Args:
        sessions: replica id -> outcome -> count; `failures`: stable code -> count.
        replicas: replica id -> (state, load).
    """

    waiting: int = 0
    wanted: int = 0
    in_flight: int = 0
    body_bytes: int = 0
    store_bytes: int = 0
    leases: int = 0
    retries: int = 0
    sessions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)
    replicas: Mapping[str, tuple[str, int]] = field(default_factory=dict)


class _Now(Collector):
    def __init__(self, read: Callable[[], Figures]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        now = self._read()
        for name, text, value in (
            ("waiting", "Questions that wait for a replica.", now.waiting),
            ("in_flight", "Questions that wait or are being answered.", now.in_flight),
            ("body_bytes", "Bytes of request bodies held.", now.body_bytes),
            ("media_store_bytes", "Bytes in the media store.", now.store_bytes),
            ("replicas_wanted", "Replicas that the load asks for, within --workers.", now.wanted),
            ("leases", "Sessions that this gateway knows.", now.leases),
        ):
            yield GaugeMetricFamily(f"{PREFIX}_{name}", text, value=float(value))
        yield CounterMetricFamily(f"{PREFIX}_retries", "Second attempts.", value=float(now.retries))
        sessions = CounterMetricFamily(f"{PREFIX}_sessions", _SESSION_TEXT, labels=("replica", "outcome"))
        for replica, counts in sorted(now.sessions.items()):
            for outcome, count in counts.items():
                sessions.add_metric((replica, outcome), float(count))
        yield sessions
        failures = CounterMetricFamily(f"{PREFIX}_routing_failures", "Questions without a replica.", labels=("code",))
        for code, count in sorted(now.failures.items()):
            failures.add_metric((code,), float(count))
        yield failures
        load = GaugeMetricFamily(f"{PREFIX}_replica_load", "Requests on a replica.", labels=("replica",))
        state = GaugeMetricFamily(f"{PREFIX}_replica_state", "1 for its state.", labels=("replica", "state"))
        for replica, (phase, requests) in sorted(now.replicas.items()):
            load.add_metric((replica,), float(requests))
            state.add_metric((replica, phase), 1.0)
        yield load
        yield state


class ReasonerMetrics:
    """What happens, counted."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._http = self._counter("http_responses", "Answers by status.", ("status",))
        self._by_status: dict[int, Counter] = {}
        self._refused = self._counter("unauthorized", "Requests without a valid token.")
        self._media = self._counter("media", "Questions with media by whether their replica held it.", ("held",))
        self._resent = self._counter("media_resent", "Questions sent again with bytes after a cache miss.")
        self._left = self._counter("disconnects", "Questions whose client left before the end.")
        self._broken = self._counter("broken_streams", "Answers that ended with an error event.")
        self._first = Histogram(
            f"{PREFIX}_first_byte_seconds",
            "Seconds from a question's whole body to the first byte of its answer.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self._ready = Gauge(f"{PREFIX}_ready", "1 while every readiness check holds.", registry=self.registry)

    def watch(self, read: Callable[[], Figures]) -> None:
        """Take everything that is a state from `read` at each scrape."""
        self.registry.register(_Now(read))

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def http_response(self, status: int) -> None:
        counter = self._by_status.get(status)
        if counter is None:
            counter = self._by_status[status] = self._http.labels(str(status))
        counter.inc()

    def unauthorized(self) -> None:
        self._refused.inc()

    def media(self, held: bool) -> None:
        self._media.labels("hit" if held else "miss").inc()

    def media_resent(self) -> None:
        self._resent.inc()

    def client_left(self) -> None:
        self._left.inc()

    def broken_stream(self) -> None:
        self._broken.inc()

    def first_byte(self, seconds: float) -> None:
        self._first.observe(seconds)

    def ready(self, yes: bool) -> None:
        self._ready.set(1 if yes else 0)

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"{PREFIX}_{name}", text, labels, registry=self.registry)
