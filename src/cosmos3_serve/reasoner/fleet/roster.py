"""The roster: which replicas are members of the fleet, in which slot and life. Pure; the clock is an argument.

A slot (`replica-0`, `replica-1`, …) outlives its replica: a replacement takes the slot of the one that died, with a
higher incarnation, so that sessions find their home again where they left it. Incarnations follow the wall clock, so
that they also rise when the roster itself was lost.

A replica that is silent for `lost_after_s`, or says that it ends, leaves its slot vacant; a slot nobody takes for
`forget_after_s` leaves the fleet. The replacement of one that was killed may be up before that silence is long enough:
where no slot is vacant, a newcomer waits until everybody else was heard once more or a slot has become vacant, and
only then does the fleet grow. A roster that replaces a lost one gives no slot to a stranger before `recover_until`:
the replicas that still serve come back to theirs first.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cosmos3_serve.reasoner.fleet.member import Demand, FleetView, GatewayStatus, Load, Member, Seen, Service, Standing
from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef, ReplicaState

SLOT = "replica-"
GATEWAY_SILENT_S = 15.0
MAX_GATEWAYS = 256
FREE = Standing()
MAX_NEWCOMERS = 256
ASKED_S = 10.0  # a question counts for so long, answered or not


@dataclass(slots=True)
class _Slot:
    member: Member
    heard_at: float
    load: Load = field(default_factory=Load)

    @property
    def vacant(self) -> bool:
        return not self.member.url


class Roster:
    """
    Args:
        generation: unlike that of any earlier roster of this service.
        wanted: replicas, until `want` says otherwise: as many slots stay although they are vacant.
        run: of the service; a roster that replaces a lost one has the same.
        recover_until: see the module; 0 for a fleet that starts.
    """

    def __init__(
        self,
        generation: str,
        wanted: int,
        *,
        run: str = "",
        recover_until: float = 0.0,
        lost_after_s: float = 8.0,
        forget_after_s: float = 900.0,
    ) -> None:
        self.generation, self.run = generation, run
        self.version = 1
        self.draining = False
        self.wanted = wanted
        self._recover_until = recover_until
        self._lost_after_s, self._forget_after_s = lost_after_s, forget_after_s
        self._slots: dict[str, _Slot] = {}
        self._newcomers: dict[str, float] = {}  # url -> first asked, while no slot was vacant
        self._gateways: dict[str, tuple[GatewayStatus, float]] = {}
        self._swept_at: float | None = None
        self.failures: dict[str, dict[str, str]] = {}  # of replicas that could not start, newest last

    # ---- asked by replicas ------------------------------------------------------------------------------------------

    def register(
        self,
        service: Service,
        now: float,
        wall: float,
        claim: ReplicaRef | None = None,
        standing: Standing | None = None,
    ) -> ReplicaRef | None:
        """A replica serves from now on.

        Args:
            wall: seconds since the epoch.
            claim: the place it had in a roster that was lost; `standing`: what that one had decided about it.

        Returns:
            Its place; None: ask again in a second.
        """
        if claim is not None and self._may_return(claim):
            return self._seat(claim, service, now, standing or FREE)
        if now < self._recover_until and not self._full():
            return None
        name = next((s for s in self._names() if s in self._slots and self._slots[s].vacant), None)
        if name is None and len(self._slots) < self.wanted:
            name = self._new_name()
        if name is None:
            if not self._all_heard_since(self._first_asked(service.url, now)):
                return None
            name = self._new_name()
        before = self._slots[name].member.incarnation if name in self._slots else 0
        return self._seat(ReplicaRef(name, max(before + 1, int(wall * 1000))), service, now)

    def beat(self, ref: ReplicaRef, load: Load, now: float) -> Standing | None:
        """The replica lives. None: it is not a member (any more) and must register again."""
        slot = self._of(ref)
        if slot is None:
            return None
        slot.heard_at, slot.load = now, load
        if load.quiet is not slot.member.quiet:
            slot.member = replace(slot.member, quiet=load.quiet)
            self._changed()
        return Standing(slot.member.leaving, slot.member.phase is ReplicaState.DRAINING)

    def drain(self, ref: ReplicaRef) -> None:
        """The replica takes nothing new; it leaves when its answers have ended."""
        slot = self._of(ref)
        if slot is not None and slot.member.phase is ReplicaState.READY:
            slot.member = replace(slot.member, phase=ReplicaState.DRAINING)
            self._changed()

    def leave(self, ref: ReplicaRef, now: float) -> ReplicaState | None:
        """The replica ends or its engine has died: its slot waits for a replacement.

        Returns:
            The phase it had; None if it was not a member.
        """
        slot = self._of(ref)
        if slot is None:
            return None
        phase = slot.member.phase
        self._vacate(slot, now)
        return phase

    def failed(self, replica: str, failure: dict[str, str]) -> None:
        """A replica could not start."""
        self.failures.pop(replica, None)
        self.failures[replica] = failure
        self._changed()
        while len(self.failures) > MAX_GATEWAYS:
            del self.failures[next(iter(self.failures))]

    # ---- asked by gateways and the service --------------------------------------------------------------------------

    def hear(self, status: GatewayStatus, now: float) -> None:
        if status.ended == self.run and not self.draining:
            self.end()  # as the roster before this one had been told
        self._gateways[status.gateway] = (status, now)
        while len(self._gateways) > MAX_GATEWAYS:
            del self._gateways[min(self._gateways, key=lambda name: self._gateways[name][1])]

    def gateway_left(self, name: str) -> None:
        """It has ended in order: nobody need wait until it has been silent for long enough."""
        self._gateways.pop(name, None)

    def gateways(self, now: float) -> list[GatewayStatus]:
        """Those heard a moment ago."""
        self._gateways = {n: (s, at) for n, (s, at) in self._gateways.items() if now - at < GATEWAY_SILENT_S}
        return [status for status, _ in self._gateways.values()]

    def want(self, wanted: int) -> None:
        """The fleet grows or shrinks to so many replicas."""
        if wanted != self.wanted:
            self.wanted = wanted
            if not wanted:  # it sleeps, and whoever wakes it finds out anew: a gateway that is not ready may get nobody
                self.failures.clear()
            self._changed()

    def demand(self, now: float) -> Demand:
        """What the size of the fleet is to follow."""
        heard = [(status, now - at) for status, at in self._gateways.values() if now - at < GATEWAY_SILENT_S]
        seqs = [slot.member.max_num_seqs for slot in self._slots.values()]
        return Demand(
            answers=sum(status.answers for status, _ in heard),
            asked=any(status.asked_s + age < ASKED_S for status, age in heard),
            seqs=min(seqs, default=0),
            wanted=self.wanted,
            settled=now >= self._recover_until and bool(heard),
        )

    def all_asked(self) -> bool:
        """Whether no more replicas are to ask for their end before the fleet has its wanted size."""
        serving = (s.member for s in self._slots.values() if s.member.phase is ReplicaState.READY)
        return sum(not member.leaving for member in serving) <= self.wanted

    def mark(self, ref: ReplicaRef) -> None:
        """The replica is about to go: it keeps its sessions, and no other settles there."""
        slot = self._of(ref)
        if slot is not None and not slot.member.leaving:
            slot.member = replace(slot.member, leaving=True)
            self._changed()

    def end(self) -> None:
        """The whole service takes nothing new."""
        self.draining = True
        self._changed()

    def renew(self, yes: bool = True) -> tuple[ReplicaRef, ...]:
        """Whoever serves now is about to be replaced, or (`yes` False) stays after all; who that is."""
        present = [slot for slot in self._slots.values() if not slot.vacant]
        for slot in present:
            slot.member = replace(slot.member, leaving=yes)
        self._changed()
        return tuple(slot.member.ref for slot in present)

    def sweep(self, now: float) -> None:
        """Find the silent, and drop slots that nobody took. Call it at least once a second.

        Whoever could not listen must not call others silent: time in which this was not called does not count.
        """
        deaf = 0.0 if self._swept_at is None else now - self._swept_at
        self._swept_at = now
        if deaf >= self._lost_after_s / 2:
            for slot in self._slots.values():
                slot.heard_at += deaf
        for name, slot in list(self._slots.items()):
            silent = now - slot.heard_at
            if not slot.vacant and silent >= self._lost_after_s:
                self._vacate(slot, now)
            elif slot.vacant and len(self._slots) > self.wanted and (silent >= self._forget_after_s or self._full()):
                del self._slots[name]
                self._changed()

    def view(self, now: float) -> FleetView:
        return FleetView(
            seen=Seen(self.generation, self.version),
            members=tuple(self._slots[name].member for name in sorted(self._slots)),
            loads={slot.member.ref: slot.load for slot in self._slots.values() if not slot.vacant},
            settled=now >= self._recover_until or self._full(),
            draining=self.draining,
            failing=bool(self.failures),
            wanted=self.wanted,
            run=self.run,
        )

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _of(self, ref: ReplicaRef) -> _Slot | None:
        slot = self._slots.get(ref.id)
        return slot if slot is not None and slot.member.ref == ref and not slot.vacant else None

    def _may_return(self, claim: ReplicaRef) -> bool:
        slot = self._slots.get(claim.id)
        return slot is None or slot.member.incarnation < claim.incarnation or slot.member.ref == claim

    def _seat(self, ref: ReplicaRef, service: Service, now: float, standing: Standing = FREE) -> ReplicaRef:
        phase = ReplicaState.DRAINING if self.draining or standing.draining else ReplicaState.READY
        self._slots[ref.id] = _Slot(Member(ref, phase, service, standing.leaving), now)
        self._newcomers.pop(service.url, None)
        self.failures.clear()
        self._changed()
        return ref

    def _vacate(self, slot: _Slot, now: float) -> None:
        gone = replace(slot.member.service, url="", pid=0)
        slot.member = Member(slot.member.ref, ReplicaState.STARTING, gone)
        slot.heard_at, slot.load = now, Load()
        self._changed()

    def _first_asked(self, url: str, now: float) -> float:
        self._newcomers = {u: at for u, at in self._newcomers.items() if now - at <= 2 * self._lost_after_s}
        while len(self._newcomers) >= MAX_NEWCOMERS and url not in self._newcomers:
            del self._newcomers[next(iter(self._newcomers))]
        return self._newcomers.setdefault(url, now)

    def _all_heard_since(self, then: float) -> bool:
        return all(slot.heard_at > then for slot in self._slots.values())

    def _full(self) -> bool:
        return sum(not slot.vacant for slot in self._slots.values()) >= self.wanted

    def _names(self) -> list[str]:
        """Wanted slots first, then whatever else there is: ids of a grown fleet are taken over as well."""
        wanted = [f"{SLOT}{number}" for number in range(self.wanted)]
        return wanted + sorted(name for name in self._slots if name not in wanted)

    def _new_name(self) -> str:
        number = 0
        while f"{SLOT}{number}" in self._slots:
            number += 1
        return f"{SLOT}{number}"

    def _changed(self) -> None:
        self.version += 1
