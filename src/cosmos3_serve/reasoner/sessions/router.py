"""Which replica gets a request, what became of its session, and what happens when that replica says no or dies.

One `Router` a gateway. It does no I/O of its own: the table is behind a port, the clock is an argument, and the caller
reports what the replica did. The life of a request:

    decision = await router.choose(key, now, media=...)
    on_accepted -> on_first_token -> on_completed       the good way
    on_finished                                         the request is over, however it went
    on_refused                                          the replica answered with an error status, or not at all
    on_died                                             the connection broke after the request was delivered

`on_refused` and `on_died` return an `Aftermath`: choose again with `after=decision`, or answer with its error, or (both
empty) pass the replica's own answer on. There is one second choice in the life of a request, whatever the reason, so
that pressure on the fleet is never multiplied. The replica that refused is eligible again when its refusal ends. After
a death only a request that some replica has answered before, itself or all its media, is sent again: anything else may
be what the replica died of.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from cosmos3_serve.errors import Cosmos3Error, EngineFailed, NotReady
from cosmos3_serve.reasoner.fleet.health import HealthBook
from cosmos3_serve.reasoner.fleet.replicas import Fleet, ReplicaRef
from cosmos3_serve.reasoner.sessions.counters import RouteCounters
from cosmos3_serve.reasoner.sessions.decide import NO_REFUSALS, Action, Choice, Refusals, decide, takers
from cosmos3_serve.reasoner.sessions.keys import SessionKey
from cosmos3_serve.reasoner.sessions.lease import Lease, LeaseCache
from cosmos3_serve.reasoner.sessions.messages import HASH_TERM, Grant, TableAway
from cosmos3_serve.reasoner.sessions.placement import RoundRobin, rendezvous, settled
from cosmos3_serve.reasoner.sessions.policy import Outcome, Profile
from cosmos3_serve.reasoner.sessions.route_errors import RETRY_AFTER_S, check_suspects, granted, lost_on, saturated
from cosmos3_serve.reasoner.sessions.suspects import Aboard, SuspectTracker

MAX_ATTEMPTS = 2
NOTHING_ABOARD = Aboard("")


class Refused(StrEnum):
    """How a replica did not take a request."""

    CLIENT_ERROR = "client_error"  # 4xx but 429: the request's fault, the replica's answer is passed on
    SATURATED = "saturated"  # 429 or 503
    SERVER_ERROR = "server_error"  # another 5xx
    UNREACHABLE = "unreachable"  # no connection: the request was never delivered
    TIMED_OUT = "timed_out"  # delivered, and no answer in time; it may still be worked on


class Stage(StrEnum):
    CHOSEN = "chosen"
    ACCEPTED = "accepted"
    ANSWERING = "answering"
    OVER = "over"


@dataclass(slots=True)
class Decision:
    """One attempt of one request; belongs to the router that made it.

    Args:
        retry_allowed: whether the death of the replica before the first token may cost a second attempt.
        request: the digest of its body and the hashes of its media.
        suspect: it, or some of its media, was aboard at an earlier death.
        n: answers that it asks for; what it counts as load.
        refused: replicas that refused earlier attempts, and when that ends; `refused_until`: the same of this one.
    """

    replica: str
    incarnation: int
    outcome: Outcome
    retry_allowed: bool
    key: SessionKey | None
    request: Aboard
    suspect: bool = False
    n: int = 1
    attempt: int = 1
    refused: Refusals = field(default_factory=dict)
    refused_until: float = 0.0
    home: ReplicaRef | None = None
    term: int = HASH_TERM
    stage: Stage = Stage.CHOSEN
    reserved: bool = False  # the place is a reservation: no replica has accepted this session there yet
    again: bool = False  # the router has offered a second choice

    @property
    def ref(self) -> ReplicaRef:
        return ReplicaRef(self.replica, self.incarnation)


@dataclass(frozen=True, slots=True)
class Aftermath:
    retry: bool = False
    error: Cosmos3Error | None = None


class Router:
    """
    Args:
        profile: `round-robin` ignores keys; `session-affinity` follows them.
        health: this gateway's view of the replicas.
        leases: this gateway's copy of the table; its rules say soft or hard.
        suspects: shared with `leases`.
    """

    def __init__(self, profile: Profile, health: HealthBook, leases: LeaseCache, suspects: SuspectTracker) -> None:
        self.profile, self.health, self.leases, self.suspects = profile, health, leases, suspects
        self.counters = RouteCounters()
        self.turn, self.spill_turn = RoundRobin(), RoundRobin()
        self.asked_at = float("-inf")  # when a request last wanted a replica

    async def choose(
        self,
        key: SessionKey | None,
        now: float,
        *,
        request: Aboard = NOTHING_ABOARD,
        n: int = 1,
        after: Decision | None = None,
    ) -> Decision:
        """Pick a replica.

        Args:
            key: the session, None for a request without one.
            now: seconds, of the clock that every other call uses.
            request: the digest of its body and the content hashes of its media.
            n: answers that the request asks for.
            after: the attempt that this one repeats.

        Raises:
            ValidationFailed: `media_quarantined`, `request_quarantined`.
            QueueFull: `fleet_saturated`: every replica is full, Retry-After.
            NotReady: `request_suspected`, `no_replica`, or in hard mode `session_home_busy`, `session_home_lost`;
                Retry-After.
        """
        if after is not None and not after.again:
            raise ValueError("this attempt was not offered a second one")
        refused = NO_REFUSALS if after is None else refusals(after)
        self.asked_at = now
        try:
            check_suspects(self.suspects, request, now, first=after is None)
            if self.profile is Profile.ROUND_ROBIN or key is None:
                fleet = self.health.fleet(now)
                choice = self._decide(None, fleet, refused, now, n, binds=False)
                grant = Grant("", self.turn.next(choice.candidates), choice.outcome, choice.action)
                replica = granted(grant, fleet)
            else:
                grant, replica = await self._of_session(key.digest, refused, now, n)
        except Cosmos3Error as error:
            self.counters.failures[error.stable_code] += 1
            raise
        outcome = grant.outcome
        if after is not None:
            after.again = False
            self.counters.retries += 1
            if outcome is Outcome.HIT and after.outcome in (Outcome.HIT, Outcome.MOVED):
                outcome = Outcome.MOVED  # another request of the session was quicker to move it
        suspect = any(map(self.suspects.suspect, (request.digest, *request.media)))
        decision = Decision(
            replica=replica.id,
            incarnation=replica.incarnation,
            outcome=outcome,
            retry_allowed=after is None and not suspect and self._answered_before(request),
            key=key if self.profile is Profile.SESSION_AFFINITY else None,
            request=request,
            suspect=suspect,
            n=n,
            attempt=1 if after is None else after.attempt + 1,
            refused=refused,
            home=grant.home,
            term=grant.term,
            reserved=not grant.bound and grant.home == replica,
        )
        self.health.on_sent(replica, n)
        self.suspects.board(replica, request)
        return decision

    def has_room(self, now: float, n: int = 1, after: Decision | None = None) -> bool:
        """Whether some replica would take such a request now."""
        return bool(takers(self.health.fleet(now), NO_REFUSALS if after is None else refusals(after), now, n))

    # ---- what the replica did ---------------------------------------------------------------------------------------

    def on_accepted(self, decision: Decision, now: float) -> None:
        """The replica answered with a success status: from here on the session may be bound to it."""
        if decision.stage is not Stage.CHOSEN:
            return
        decision.stage = Stage.ACCEPTED
        self.health.on_answer(decision.ref, now)
        self.counters.add(decision.replica, decision.outcome)
        if decision.key is not None and decision.home == decision.ref:
            self.leases.on_accepted(decision.key.digest, decision.ref, decision.term, now)

    def on_first_token(self, decision: Decision, now: float) -> None:
        """The answer began: the media of the request is proven, and there is no way back."""
        self.on_accepted(decision, now)
        if decision.stage is Stage.ACCEPTED:
            decision.stage = Stage.ANSWERING
            self.health.on_token(decision.ref, now)
            for item in decision.request.media:
                self.suspects.on_answered(item)

    def on_completed(self, decision: Decision) -> None:
        """The whole answer has come: the request as it is harms no replica."""
        if decision.stage is Stage.ANSWERING and decision.request.digest:
            self.suspects.on_completed(decision.request.digest)

    def on_finished(self, decision: Decision, now: float) -> None:
        """The request is over: answered, or its client left. A reservation that was not accepted vanishes."""
        if decision.stage is Stage.CHOSEN:
            self._unreserve(decision)
        self._end(decision, now)

    def on_refused(
        self, decision: Decision, now: float, why: Refused, *, retry_after_s: float | None = None
    ) -> Aftermath:
        """The replica did not accept."""
        if decision.stage is Stage.OVER:
            return Aftermath()
        decision.refused_until = now + self.health.rules.probe_first_s
        if why is Refused.UNREACHABLE:
            self.health.on_unreachable(decision.ref, now)
        elif why is Refused.TIMED_OUT:
            self.health.on_timeout(decision.ref, now)
        elif why is Refused.SATURATED:
            decision.refused_until = self.health.on_full(decision.ref, now, decision.n, retry_after_s)
        elif why is Refused.SERVER_ERROR:
            self.health.on_failed(decision.ref, now)
        else:
            self.health.on_answer(decision.ref, now)
        self._unreserve(decision)
        self._end(decision, now)
        if why is Refused.CLIENT_ERROR or why is Refused.SERVER_ERROR:
            return Aftermath()
        if why is Refused.TIMED_OUT:
            return self._fail(NotReady("the replica did not answer in time", code="replica_timeout",
                                       retry_after_s=RETRY_AFTER_S))  # fmt: skip
        # Never delivered, or sent back untouched: the request cannot have done any harm.
        if decision.attempt < MAX_ATTEMPTS:
            decision.again = True
            return Aftermath(retry=True)
        if why is Refused.SATURATED:
            return self._fail(saturated(retry_after_s))
        return self._fail(NotReady("no replica could be reached", code="replica_lost", retry_after_s=RETRY_AFTER_S))

    def on_died(self, decision: Decision, now: float, *, ended: bool = False) -> Aftermath:
        """The connection broke after the request was delivered; `ended`: in order, as of one that was draining."""
        if decision.stage is Stage.OVER:
            return Aftermath()
        answering = decision.stage is Stage.ANSWERING
        decision.refused_until = now + self.health.rules.probe_first_s
        ended = ended or self.health.drained(decision.ref)
        may_repeat = not decision.suspect and (ended or self._answered_before(decision.request))
        self.health.on_unreachable(decision.ref, now)
        if not ended:
            self.suspects.on_died(decision.ref, now)
        if decision.stage is Stage.CHOSEN:
            self._unreserve(decision)
        self._end(decision, now)
        if answering:
            return self._fail(EngineFailed("the replica was lost during the answer", code="replica_lost",
                                           remedy="send the request again"))  # fmt: skip
        if decision.attempt < MAX_ATTEMPTS and may_repeat:
            decision.again = True
            return Aftermath(retry=True)
        if decision.attempt < MAX_ATTEMPTS:
            return self._fail(lost_on(decision.request))
        return self._fail(NotReady("two replicas were lost in turn", code="replica_lost", retry_after_s=RETRY_AFTER_S))

    # ---- sessions ---------------------------------------------------------------------------------------------------

    async def _of_session(self, key: str, refused: Refusals, now: float, n: int) -> tuple[Grant, ReplicaRef]:
        sure, last_known = self.leases.lookup(key, now), self.leases.lookup(key, now, sure=False)
        # Most requests stay at home, which the home alone decides.
        fleet = self.health.fleet(now, only=sure.home.id if sure else None)
        grant = None if sure is None else self.from_lease(sure, fleet, now, refused=refused, n=n)
        if grant is None or grant.why is not Action.STAY:
            fleet = self.health.fleet(now)
            grant = None if sure is None else self.from_lease(sure, fleet, now, refused=refused, n=n)
        self.leases.begin(key)
        try:
            if grant is None:
                try:
                    grant = await self.leases.acquire(key, fleet, now, refused=refused, n=n)
                except TableAway:
                    grant = self.alone(key, last_known, fleet, now, refused=refused, n=n)
            elif grant.replica is not None:
                self.leases.hit(key)
            return grant, granted(grant, fleet)
        except BaseException:  # cancelled by its client included: the request must not stay counted
            self.leases.end(key, now, accepted=False)
            raise

    def from_lease(
        self, lease: Lease, fleet: Fleet, now: float, *, refused: Refusals = NO_REFUSALS, n: int = 1, dry: bool = False
    ) -> Grant | None:
        """What is decided without the table; None where a home must be found. `dry` moves no cursor."""
        choice = self._decide(lease.home, fleet, refused, now, n)
        if choice.action in (Action.PLACE, Action.FOLLOW):
            return None
        replica = settled(choice, self.spill_turn, dry=dry)
        return Grant("", replica, choice.outcome, choice.action, lease.home, lease.term, bound=True)

    def alone(
        self, key: str, lease: Lease | None, fleet: Fleet, now: float, *,
        refused: Refusals = NO_REFUSALS, n: int = 1, dry: bool = False,
    ) -> Grant:  # fmt: skip
        """The table is away: what every gateway decides alike, for the table to adopt later."""
        if lease is not None and (grant := self.from_lease(lease, fleet, now, refused=refused, n=n, dry=dry)):
            return grant
        choice = self._decide(lease.home if lease else None, fleet, refused, now, n)
        home = choice.home or rendezvous(key, choice.candidates)
        term = HASH_TERM if lease is None else lease.term + 1
        return Grant("", home, choice.outcome, choice.action, home, term)

    def _decide(
        self, home: ReplicaRef | None, fleet: Fleet, refused: Refusals, now: float, n: int, *, binds: bool = True
    ) -> Choice:
        return decide(home, None, fleet, refused, now, n, mode=self.leases.rules.mode, binds=binds)

    def _answered_before(self, request: Aboard) -> bool:
        """Whether a replica has answered this request or, if it has media, all of those."""
        proven = self.suspects.proven
        return all(map(proven, request.media)) if request.media else proven(request.digest)

    def _unreserve(self, decision: Decision) -> None:
        if decision.key is not None and decision.reserved:
            self.leases.on_refused(decision.key.digest, decision.ref)

    def _end(self, decision: Decision, now: float) -> None:
        if decision.stage is Stage.OVER:
            return
        accepted = decision.stage is not Stage.CHOSEN
        decision.stage = Stage.OVER
        self.health.on_ended(decision.ref, decision.n)
        self.suspects.leave(decision.ref, decision.request)
        if decision.key is not None:
            self.leases.end(decision.key.digest, now, accepted=accepted)

    def _fail(self, error: Cosmos3Error) -> Aftermath:
        self.counters.failures[error.stable_code] += 1
        return Aftermath(error=error)


def refusals(after: Decision) -> Refusals:
    """Of the request whose last attempt this was: replica -> the time at which its refusal ends."""
    return {**after.refused, after.ref: after.refused_until}
