"""What one gateway believes of each replica.

Three things decide a replica's state: the control plane's phase, whether it answers (a circuit that opens and is
probed), and its load. An answer, whatever its status, proves that the replica lives: a 4xx says something about the
request only, and fifty of them change nothing. A replica that accepts and never answers hurts nobody else: its own
requests make it saturated, and timeouts open its circuit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cosmos3_serve.reasoner.fleet.replicas import Fleet, ReplicaRef, ReplicaState, ReplicaView


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """A replica as the control plane knows it: `phase` is starting, ready or draining; see `Member` for `leaving`."""

    ref: ReplicaRef
    max_num_seqs: int
    phase: ReplicaState = ReplicaState.READY
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class HealthRules:
    """
    Args:
        timeouts_to_open: consecutive unanswered requests after which a replica counts as dead.
        probe_first_s, probe_max_s: wait before the first probe of a dead replica; doubles up to the second.
        probe_timeout_s: after this a probe that nobody reported on counts as failed.
        saturated_hold_s: how long a 429 or 503 of a replica counts as saturation when it gives no Retry-After.
    """

    timeouts_to_open: int = 2
    probe_first_s: float = 0.5
    probe_max_s: float = 30.0
    probe_timeout_s: float = 5.0
    saturated_hold_s: float = 0.5


@dataclass(slots=True)
class _Record:
    spec: ReplicaSpec
    in_flight: int = 0
    others: int = 0  # running + waiting on the replica that are not ours, from its last load report
    timeouts: int = 0
    failed_probes: int = 0
    dead: bool = False
    probe_wanted: bool = False
    probe_at: float = 0.0
    probe_sent_at: float | None = None
    saturated_until: float = 0.0

    def load(self) -> int:
        return self.in_flight + self.others


class HealthBook:
    """Every event names the incarnation it concerns; one about an earlier life of the replica is ignored."""

    def __init__(self, rules: HealthRules | None = None) -> None:
        self.rules = rules or HealthRules()
        self._records: dict[str, _Record] = {}

    def sync(self, specs: Iterable[ReplicaSpec]) -> None:
        """Take over the control plane's list. A replica that is not in it is gone; a new incarnation starts clean."""
        found: dict[str, _Record] = {}
        for spec in specs:
            record = self._records.get(spec.ref.id)
            if record is None or record.spec.ref.incarnation < spec.ref.incarnation:
                record = _Record(spec)
            elif record.spec.ref == spec.ref:
                record.spec = spec
            # else: the list is older than what we have seen; the newer life stands.
            found[spec.ref.id] = record
        self._records = found

    def fleet(self, now: float, *, only: str | None = None) -> Fleet:
        """The view that decisions are made on; `only`: of one replica, for a decision that no other can change."""
        ids = self._records if only is None else self._records.keys() & {only}
        rows = ((i, self._records[i]) for i in ids)
        return Fleet({i: ReplicaView(r.spec.ref.incarnation, self._state(r, now), r.spec.leaving) for i, r in rows})

    def state(self, ref: ReplicaRef, now: float) -> ReplicaState | None:
        """None: gone, or another incarnation."""
        record = self._of(ref)
        return None if record is None else self._state(record, now)

    def load(self, ref: ReplicaRef) -> int:
        """Running plus waiting requests, estimated; 0 for an unknown replica."""
        record = self._of(ref)
        return 0 if record is None else record.load()

    # ---- requests ---------------------------------------------------------------------------------------------------

    def on_sent(self, ref: ReplicaRef) -> None:
        if record := self._of(ref):
            record.in_flight += 1

    def on_ended(self, ref: ReplicaRef) -> None:
        """One `on_sent` is over, however it ended."""
        record = self._of(ref)
        if record and record.in_flight:
            record.in_flight -= 1

    def on_answer(self, ref: ReplicaRef, status: int, now: float, retry_after_s: float | None = None) -> None:
        """A status line came back. 429 and 503 mean full for a while; any other 5xx asks for a probe, and only the
        probe decides: one video that breaks the engine's code must not take the fleet down."""
        record = self._of(ref)
        if record is None:
            return
        record.timeouts = 0
        record.probe_at = min(record.probe_at, now)  # if it counts as dead: perhaps it is not
        if status in (429, 503):
            hold = self.rules.saturated_hold_s if retry_after_s is None else retry_after_s
            record.saturated_until = now + min(max(hold, 0.0), self.rules.probe_max_s)
        elif status >= 500:
            record.probe_wanted = True

    def on_unreachable(self, ref: ReplicaRef, now: float) -> None:
        """No connection, or one that broke before the answer: nobody is there."""
        if record := self._of(ref):
            self._open(record, now)

    def on_timeout(self, ref: ReplicaRef, now: float) -> None:
        """Connected, and no answer in time."""
        record = self._of(ref)
        if record is None:
            return
        record.timeouts += 1
        if record.timeouts >= self.rules.timeouts_to_open:
            self._open(record, now)

    def on_load(self, ref: ReplicaRef, running: int, waiting: int) -> None:
        """The replica's own numbers. Kept as the share that is not ours, so that our own requests count at once when
        they start and end, not at the next report."""
        if record := self._of(ref):
            record.others = max(0, running + waiting - record.in_flight)

    # ---- probes -----------------------------------------------------------------------------------------------------

    def take_probes(self, now: float) -> list[ReplicaRef]:
        """Replicas to probe now, each at most once at a time; report with `on_probe`."""
        due = []
        for record in self._records.values():
            if record.probe_sent_at is not None and now - record.probe_sent_at >= self.rules.probe_timeout_s:
                self._probe_failed(record, now)
            if record.probe_sent_at is None and (record.probe_wanted or (record.dead and now >= record.probe_at)):
                record.probe_sent_at = now
                due.append(record.spec.ref)
        return due

    def on_probe(self, ref: ReplicaRef, ok: bool, now: float) -> None:
        """The answer to a probe; one that comes after its timeout still closes the circuit if it is good."""
        record = self._of(ref)
        if record is None:
            return
        if not ok:
            if record.probe_sent_at is not None:
                self._probe_failed(record, now)
            return
        record.dead, record.probe_wanted, record.probe_sent_at = False, False, None
        record.timeouts = record.failed_probes = 0

    def _probe_failed(self, record: _Record, now: float) -> None:
        record.probe_sent_at, record.probe_wanted = None, False
        record.dead = True
        record.failed_probes += 1
        self._schedule(record, now)

    def _open(self, record: _Record, now: float) -> None:
        if not record.dead:
            record.dead, record.failed_probes = True, 0
            self._schedule(record, now)

    def _schedule(self, record: _Record, now: float) -> None:
        # The exponent is capped: a replica dead for days must not overflow a float.
        wait = self.rules.probe_first_s * 2.0 ** min(record.failed_probes, 30)
        record.probe_at = now + min(wait, self.rules.probe_max_s)

    # ---- state ------------------------------------------------------------------------------------------------------

    def _of(self, ref: ReplicaRef) -> _Record | None:
        record = self._records.get(ref.id)
        return record if record is not None and record.spec.ref == ref else None

    def _state(self, record: _Record, now: float) -> ReplicaState:
        if record.dead:
            return ReplicaState.DEAD
        if record.spec.phase is not ReplicaState.READY:
            return record.spec.phase
        if record.load() >= record.spec.max_num_seqs or now < record.saturated_until:
            return ReplicaState.SATURATED
        return ReplicaState.READY
