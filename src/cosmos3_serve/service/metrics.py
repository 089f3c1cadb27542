"""Metrics of the generator service: one registry of our own, nothing of Ray's or of the process's global state.

Two histograms tell two different things and are never mixed: `coalesced_batch_size` counts the requests that one
`@serve.batch` call brought together, `inference_batch_size` the samples that went through the network together (on a
CPU of the diffusers engine one block a step wherever that changes no bit; see its `together.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

disable_created_metrics()  # type: ignore[no-untyped-call]  # a third of the text, and nothing reads it

CONTENT_TYPE = CONTENT_TYPE_LATEST
PREFIX = "cosmos3_generator"
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256)
SECONDS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
MAX_LABEL_VALUES = 64
OTHER = "other"


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """The queue at one moment, as the scheduler sees it."""

    depth: int = 0
    oldest_age_s: float = 0.0
    running: int = 0
    waves_started: int = 0
    stalled: bool = False


class _QueueCollector(Collector):
    """Reads the queue when it is scraped: a gauge that is set on events would show an age that stands still."""

    def __init__(self, read: Callable[[], QueueFigures]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        now = self._read()
        for name, text, value in (
            ("queue_depth", "Samples that wait.", float(now.depth)),
            ("queue_oldest_age_seconds", "Age of the sample that waits longest.", now.oldest_age_s),
            ("samples_running", "Samples handed to the engine.", float(now.running)),
            ("waves_started", "Waves released since the start.", float(now.waves_started)),
            ("engine_stalled", "1 while work makes no progress past its deadline.", float(now.stalled)),
        ):
            yield GaugeMetricFamily(f"{PREFIX}_{name}", text, value=value)


class GeneratorMetrics:
    """What happens, counted. The methods named like events are the hooks that the coordinator calls."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._coalesced = self._histogram(
            "coalesced_batch_size", "Requests brought together by one @serve.batch call.", SIZES
        )
        self._inference = self._histogram(
            "inference_batch_size", "Samples that went through the network together.", SIZES
        )
        self._phases = self._histogram(
            "phase_seconds", "Seconds of one sample by phase; delivery: of one artifact served.", SECONDS, ("phase",)
        )
        self._guardrails = self._counter("guardrail_decisions", "Guardrail decisions.", ("check", "decision"))
        self._samples = self._counter("samples", "Samples that entered a state.", ("state",))
        self._bytes = self._counter("bytes", "Bytes by direction.", ("direction",))
        self._refused = self._counter("unauthorized", "Requests without a valid token.")
        self._http = self._counter("http_responses", "Answers by status.", ("status",))
        self._replaced = self._counter("engine_replacements", "Engine replicas replaced by the watchdog.")
        self._ready = Gauge(f"{PREFIX}_ready", "1 while every readiness check holds.", registry=self.registry)
        self._labels: dict[str, set[str]] = {}

    def watch_queue(self, read: Callable[[], QueueFigures]) -> None:
        """Take the queue's gauges from `read` at each scrape."""
        self.registry.register(_QueueCollector(read))

    def render(self) -> bytes:
        """The exposition text of everything."""
        return generate_latest(self.registry)

    # ---- hooks -----------------------------------------------------------------------------------------------------

    def coalesced(self, size: int) -> None:
        self._coalesced.observe(size)

    def inference(self, size: int) -> None:
        self._inference.observe(size)

    def phase(self, name: str, seconds: float) -> None:
        self._phases.labels(self._bounded("phase", name)).observe(seconds)

    def sample_state(self, state: str) -> None:
        self._samples.labels(self._bounded("state", str(state))).inc()

    def guardrail(self, check: str, decision: str) -> None:
        self._guardrails.labels(self._bounded("check", check), self._bounded("decision", decision)).inc()

    def bytes(self, direction: str, count: int) -> None:
        self._bytes.labels(self._bounded("direction", direction)).inc(count)

    def unauthorized(self) -> None:
        self._refused.inc()

    def http_response(self, status: int) -> None:
        self._http.labels(str(status)).inc()

    def engine_replaced(self) -> None:
        self._replaced.inc()

    def ready(self, yes: bool) -> None:
        self._ready.set(1 if yes else 0)

    # ---- helpers ---------------------------------------------------------------------------------------------------

    def _bounded(self, label: str, value: str) -> str:
        """Label values come from below us; past a bound they fall together, so that series cannot grow for ever."""
        known = self._labels.setdefault(label, set())
        if value not in known:
            if len(known) >= MAX_LABEL_VALUES:
                return OTHER
            known.add(value)
        return value

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()) -> Histogram:
        return Histogram(f"{PREFIX}_{name}", text, labels, buckets=buckets, registry=self.registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"{PREFIX}_{name}", text, labels, registry=self.registry)
