"""What one gateway believes of each replica.

Three things decide a replica's state: the control plane's phase, whether it answers (a circuit that opens and is
probed), and its load. Load is what gateways have in flight there, this one's counted here, the others' as they last
reported; a request for `n` answers counts as `n`. Reports age: after `others_ttl_s` without one the others count for
nothing, and a replica that is fuller than we think says so itself.

An answer, whatever its status, proves that the replica lives: a 4xx says something about the request only, and fifty of
them change nothing. After a 5xx or an unanswered request the replica is examined by a canary, a real question; one that
fails it is dead until it passes one, however green its /health is. A replica that accepts and never answers hurts
nobody else: its own requests make it saturated, and timeouts open its circuit. One whose engine has work and computes
nothing says so itself (`quiet`): new sessions go elsewhere until it computes again or is replaced.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from cosmos3_serve.reasoner.fleet.replicas import Fleet, ReplicaRef, ReplicaState, ReplicaView

MAX_DRAINED = 256


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """A replica as the control plane knows it: `phase` is starting, ready or draining; see `Member` for the rest."""

    ref: ReplicaRef
    max_num_seqs: int
    phase: ReplicaState = ReplicaState.READY
    leaving: bool = False
    quiet: bool | None = None


@dataclass(frozen=True, slots=True)
class HealthRules:
    """
    Args:
        timeouts_to_open: consecutive unanswered requests after which a replica counts as dead.
        probe_first_s, probe_max_s: wait before the first probe of a dead replica; doubles up to the second.
        probe_timeout_s: after this a probe that nobody reported on counts as failed.
        canary_timeout_s: the same for a canary, which waits its turn in the engine.
        saturated_hold_s: how long a 429 or 503 of a replica counts as saturation when it gives no Retry-After.
        others_ttl_s: how long the others' share of the load is believed without a new report.
    """

    timeouts_to_open: int = 2
    probe_first_s: float = 0.5
    probe_max_s: float = 30.0
    probe_timeout_s: float = 5.0
    canary_timeout_s: float = 30.0
    saturated_hold_s: float = 0.5
    others_ttl_s: float = 5.0


class Probe(NamedTuple):
    """`canary`: ask the replica a real question; else /health is enough."""

    ref: ReplicaRef
    canary: bool


@dataclass(slots=True)
class _Record:
    spec: ReplicaSpec
    in_flight: int = 0  # answers that this gateway waits for
    others: int = 0  # those of the other gateways, as of `others_at`
    timeouts: int = 0
    failed_probes: int = 0
    dead: bool = False
    canary: bool = False  # it failed a request: only a canary clears it
    canary_sent: bool = False  # the probe under way is one
    token_at: float = float("-inf")
    probe_at: float = 0.0
    probe_sent_at: float | None = None
    full_until: float = 0.0
    full_for: int = 1


class HealthBook:
    """Every event names the incarnation it concerns; one about an earlier life of the replica is ignored."""

    def __init__(self, rules: HealthRules | None = None) -> None:
        self.rules = rules or HealthRules()
        self._records: dict[str, _Record] = {}
        self._drained: OrderedDict[ReplicaRef, None] = OrderedDict()  # lives that ended in order, the latest last
        self._others_at = float("-inf")

    def sync(self, specs: Iterable[ReplicaSpec]) -> None:
        """Take over the control plane's list. A replica that is not in it is gone; a new incarnation starts clean."""
        found: dict[str, _Record] = {}
        draining = self._draining()
        for spec in specs:
            record = self._records.get(spec.ref.id)
            if record is None or record.spec.ref.incarnation < spec.ref.incarnation:
                record = _Record(spec)
            elif record.spec.ref == spec.ref:
                record.spec = spec
            # else: the list is older than what we have seen; the newer life stands.
            found[spec.ref.id] = record
        self._records = found
        self._drained.update(dict.fromkeys(draining - self._draining()))
        for record in found.values():
            if record.spec.phase is ReplicaState.READY:
                self._drained.pop(record.spec.ref, None)
        while len(self._drained) > MAX_DRAINED:
            self._drained.popitem(last=False)

    def fleet(self, now: float, *, only: str | None = None) -> Fleet:
        """The view that decisions are made on; `only`: of one replica, for a decision that no other can change."""
        ids = self._records if only is None else self._records.keys() & {only}
        rows = ((i, self._records[i]) for i in ids)
        return Fleet({i: self._view(r, now) for i, r in rows})

    def state(self, ref: ReplicaRef, now: float) -> ReplicaState | None:
        """None: gone, or another incarnation."""
        record = self._of(ref)
        return None if record is None else self._state(record, now)

    def drained(self, ref: ReplicaRef) -> bool:
        """Whether this life of it was draining and has left since. One that breaks while it drains has died."""
        return ref in self._drained

    def examined(self, ref: ReplicaRef) -> bool:
        """Whether it failed a request and no canary has cleared it yet, or it is gone."""
        record = self._of(ref)
        return record is None or record.canary or record.dead

    def load(self, ref: ReplicaRef, now: float) -> int:
        """Answers that all gateways wait for there; 0 for an unknown replica."""
        record = self._of(ref)
        return 0 if record is None else self._load(record, now)

    def in_flight(self) -> dict[ReplicaRef, int]:
        """This gateway's share of the load, for the others."""
        return {r.spec.ref: r.in_flight for r in self._records.values() if r.in_flight}

    # ---- requests ---------------------------------------------------------------------------------------------------

    def on_sent(self, ref: ReplicaRef, n: int = 1) -> None:
        """A request for `n` answers is on its way there."""
        if record := self._of(ref):
            record.in_flight += n

    def on_ended(self, ref: ReplicaRef, n: int = 1) -> None:
        """One `on_sent` is over, however it ended."""
        if record := self._of(ref):
            record.in_flight = max(0, record.in_flight - n)

    def on_others(self, shares: Mapping[ReplicaRef, int], now: float) -> None:
        """What the other gateways have in flight, as they last reported: the whole list."""
        self._others_at = now
        for record in self._records.values():
            record.others = shares.get(record.spec.ref, 0)

    def on_full(self, ref: ReplicaRef, now: float, n: int = 1, retry_after_s: float | None = None) -> float:
        """It refused a request for `n` answers for want of room (429 or 503): for a while it is full for requests that
        are as wide or wider.

        Returns:
            The time at which the refusal ends.
        """
        hold = self.rules.saturated_hold_s if retry_after_s is None else retry_after_s
        until = now + min(max(hold, 0.0), self.rules.probe_max_s)
        if record := self._of(ref):
            record.timeouts = 0
            record.full_for = min(n, record.full_for) if now < record.full_until else n
            record.full_until = max(until, record.full_until)
        return until

    def on_answer(self, ref: ReplicaRef, now: float) -> None:
        """A status line came back."""
        record = self._of(ref)
        if record is None:
            return
        record.timeouts = 0
        record.probe_at = min(record.probe_at, now)  # if it counts as dead: perhaps it is not

    def on_token(self, ref: ReplicaRef, now: float) -> None:
        """An answer began to come: the engine works."""
        if record := self._of(ref):
            record.token_at = now

    def on_failed(self, ref: ReplicaRef, now: float) -> None:
        """It answered a request with a failure of its own: a canary decides whether it is the replica or the request.
        One video that breaks the engine's code must not take the fleet down."""
        if record := self._of(ref):
            self.on_answer(ref, now)
            record.canary = True

    def on_unreachable(self, ref: ReplicaRef, now: float) -> None:
        """No connection, or one that broke before the answer: nobody is there."""
        if record := self._of(ref):
            self._open(record, now)

    def on_timeout(self, ref: ReplicaRef, now: float) -> None:
        """Connected, and no answer in time. From an engine that computes, it was only a long one."""
        record = self._of(ref)
        if record is None or record.spec.quiet is False:
            return
        record.timeouts += 1
        record.canary = True
        if record.timeouts >= self.rules.timeouts_to_open:
            self._open(record, now)

    # ---- probes -----------------------------------------------------------------------------------------------------

    def take_probes(self, now: float) -> list[Probe]:
        """Replicas to probe now, each at most once at a time; report with `on_probe`."""
        due = []
        for record in self._records.values():
            limit = self.rules.canary_timeout_s if record.canary else self.rules.probe_timeout_s
            if record.probe_sent_at is not None and now - record.probe_sent_at >= limit:
                self._no_answer(record, now)
            if record.probe_sent_at is None and ((record.canary or record.dead) and now >= record.probe_at):
                record.probe_sent_at, record.canary_sent = now, record.canary
                due.append(Probe(record.spec.ref, record.canary))
        return due

    def on_probe(self, ref: ReplicaRef, ok: bool | None, now: float) -> None:
        """The answer to a probe, None if there was none in time; one that comes after its timeout still closes the
        circuit if it is good."""
        record = self._of(ref)
        if record is None:
            return
        if not ok:
            if record.probe_sent_at is not None:
                (self._no_answer if ok is None else self._probe_failed)(record, now)
            return
        record.probe_sent_at = None
        if record.canary and not record.canary_sent:
            return  # it failed a request meanwhile: /health was not the question
        record.dead = record.canary = False
        record.timeouts = record.failed_probes = 0

    def _no_answer(self, record: _Record, now: float) -> None:
        """A canary that waits behind long answers proves nothing while others are being answered, or while the engine
        says that it computes."""
        sent, computes = record.probe_sent_at, record.spec.quiet is False
        if record.canary_sent and sent is not None and (computes or record.token_at >= sent):
            record.probe_sent_at, record.probe_at = None, now + self.rules.canary_timeout_s
            return
        self._probe_failed(record, now)

    def _probe_failed(self, record: _Record, now: float) -> None:
        record.probe_sent_at = None
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

    def _draining(self) -> set[ReplicaRef]:
        return {r.spec.ref for r in self._records.values() if r.spec.phase is ReplicaState.DRAINING}

    def _of(self, ref: ReplicaRef) -> _Record | None:
        record = self._records.get(ref.id)
        return record if record is not None and record.spec.ref == ref else None

    def _load(self, record: _Record, now: float) -> int:
        told = now - self._others_at < self.rules.others_ttl_s
        return record.in_flight + (record.others if told else 0)

    def _view(self, record: _Record, now: float) -> ReplicaView:
        full_for = record.full_for if now < record.full_until else None
        spec = record.spec
        examined = record.canary or spec.quiet is True
        return ReplicaView(spec.ref.incarnation, self._state(record, now), spec.leaving, full_for, examined)

    def _state(self, record: _Record, now: float) -> ReplicaState:
        if record.dead:
            return ReplicaState.DEAD
        if record.spec.phase is not ReplicaState.READY:
            return record.spec.phase
        full = now < record.full_until and record.full_for == 1
        if full or self._load(record, now) >= record.spec.max_num_seqs:
            return ReplicaState.SATURATED
        return ReplicaState.READY
