"""Which replica gets a request, what became of its session, and what happens when that replica says no or dies.

One `Router` a gateway. It does no I/O of its own: the table is behind a port, the clock is an argument, and the caller
reports what the replica did. The life of a request:

    decision = await router.choose(key, now, media=...)
    on_accepted -> on_first_token -> on_finished        the good way; on_finished also after a client's disconnect
    on_refused                                          the replica answered with an error status, or not at all
    on_died                                             the connection broke after the request was delivered

`on_refused` and `on_died` return an `Aftermath`: choose again with `after=decision`, or answer with its error, or (both
empty) pass the replica's own answer on. There is one second choice in the life of a request, whatever the reason, so
that pressure on the fleet is never multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from cosmos3_serve.errors import Cosmos3Error, EngineFailed, NotReady, QueueFull, ValidationFailed
from cosmos3_serve.reasoner.fleet.health import HealthBook
from cosmos3_serve.reasoner.fleet.replicas import Fleet, ReplicaRef
from cosmos3_serve.reasoner.sessions.counters import RouteCounters
from cosmos3_serve.reasoner.sessions.keys import SessionKey
from cosmos3_serve.reasoner.sessions.lease import Lease, LeaseCache
from cosmos3_serve.reasoner.sessions.messages import HASH_TERM, Grant, TableAway
from cosmos3_serve.reasoner.sessions.placement import RoundRobin, rendezvous
from cosmos3_serve.reasoner.sessions.policy import Course, Outcome, Profile, course
from cosmos3_serve.reasoner.sessions.suspects import SuspectTracker

MAX_ATTEMPTS = 2
RETRY_AFTER_S = 1.0
MEDIA_RETRY_AFTER_S = 5.0  # longer than reports on a death take to be judged


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
    """

    replica: str
    incarnation: int
    outcome: Outcome
    retry_allowed: bool
    key: SessionKey | None
    media: tuple[str, ...]
    attempt: int = 1
    refused: frozenset[ReplicaRef] = frozenset()
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

    async def choose(
        self,
        key: SessionKey | None,
        now: float,
        *,
        media: Sequence[str] = (),
        after: Decision | None = None,
    ) -> Decision:
        """Pick a replica.

        Args:
            key: the session, None for a request without one.
            now: seconds, of the clock that every other call uses.
            media: content hashes of the request's media.
            after: the attempt that this one repeats.

        Raises:
            ValidationFailed: `media_quarantined`.
            QueueFull: `fleet_saturated`: every replica is full, Retry-After.
            NotReady: `no_replica`, or in hard mode `session_home_busy`, `session_home_lost`; Retry-After.
        """
        if after is not None and not after.again:
            raise ValueError("this attempt was not offered a second one")
        try:
            self._check_media(media, now)
            refused = frozenset() if after is None else after.refused | {after.ref}
            if self.profile is Profile.ROUND_ROBIN or key is None:
                fleet = self.health.fleet(now)
                grant = Grant("", self.turn.next(fleet.ready(refused)), Outcome.NONE, Course.PLACE)
                replica = self._granted(grant, fleet)
            else:
                grant, replica = await self._of_session(key.digest, refused, now)
        except Cosmos3Error as error:
            self.counters.failures[error.stable_code] += 1
            raise
        outcome = grant.outcome
        if after is not None:
            after.again = False
            self.counters.retries += 1
            if outcome is Outcome.HIT and after.outcome in (Outcome.HIT, Outcome.MOVED):
                outcome = Outcome.MOVED  # another request of the session was quicker to move it
        decision = Decision(
            replica=replica.id,
            incarnation=replica.incarnation,
            outcome=outcome,
            retry_allowed=after is None and all(map(self.suspects.proven, media)),
            key=key if self.profile is Profile.SESSION_AFFINITY else None,
            media=tuple(media),
            attempt=1 if after is None else after.attempt + 1,
            refused=refused,
            home=grant.home,
            term=grant.term,
            reserved=not grant.bound and grant.home == replica,
        )
        self.health.on_sent(replica)
        self.suspects.board(replica, decision.media)
        return decision

    # ---- what the replica did ---------------------------------------------------------------------------------------

    def on_accepted(self, decision: Decision, now: float) -> None:
        """The replica answered with a success status: from here on the session may be bound to it."""
        if decision.stage is not Stage.CHOSEN:
            return
        decision.stage = Stage.ACCEPTED
        self.health.on_answer(decision.ref, 200, now)
        self.counters.add(decision.replica, decision.outcome)
        if decision.key is not None and decision.home == decision.ref:
            self.leases.on_accepted(decision.key.digest, decision.ref, decision.term, now)

    def on_first_token(self, decision: Decision, now: float) -> None:
        """The answer began: its media is proven, and there is no way back."""
        self.on_accepted(decision, now)
        if decision.stage is Stage.ACCEPTED:
            decision.stage = Stage.ANSWERING
            for item in decision.media:
                self.suspects.on_answered(item)

    def on_finished(self, decision: Decision, now: float) -> None:
        """The request is over: answered, or its client left. A reservation that was not accepted vanishes."""
        if decision.stage is Stage.CHOSEN:
            self._unreserve(decision)
        self._end(decision, now)

    def on_refused(
        self, decision: Decision, now: float, why: Refused, *, status: int = 0, retry_after_s: float | None = None
    ) -> Aftermath:
        """The replica did not accept. `status` is the replica's, 0 without an answer."""
        if decision.stage is Stage.OVER:
            return Aftermath()
        if why is Refused.UNREACHABLE:
            self.health.on_unreachable(decision.ref, now)
        elif why is Refused.TIMED_OUT:
            self.health.on_timeout(decision.ref, now)
        else:
            self.health.on_answer(decision.ref, status, now, retry_after_s)
        self._unreserve(decision)
        self._end(decision, now)
        if why is Refused.CLIENT_ERROR or why is Refused.SERVER_ERROR:
            return Aftermath()
        if why is Refused.TIMED_OUT:
            return self._fail(NotReady("the replica did not answer in time", code="replica_timeout",
                                       retry_after_s=RETRY_AFTER_S))  # fmt: skip
        # Never delivered, or sent back untouched: the media cannot have done any harm.
        if decision.attempt < MAX_ATTEMPTS:
            decision.again = True
            return Aftermath(retry=True)
        if why is Refused.SATURATED:
            return self._fail(_saturated(retry_after_s))
        return self._fail(NotReady("no replica could be reached", code="replica_lost", retry_after_s=RETRY_AFTER_S))

    def on_died(self, decision: Decision, now: float) -> Aftermath:
        """The connection broke after the request was delivered."""
        if decision.stage is Stage.OVER:
            return Aftermath()
        answering = decision.stage is Stage.ANSWERING
        self.health.on_unreachable(decision.ref, now)
        self.suspects.on_died(decision.ref, now)
        if decision.stage is Stage.CHOSEN:
            self._unreserve(decision)
        self._end(decision, now)
        if answering:
            return self._fail(EngineFailed("the replica was lost during the answer", code="replica_lost",
                                           remedy="send the request again"))  # fmt: skip
        if decision.attempt < MAX_ATTEMPTS and all(map(self.suspects.proven, decision.media)):
            decision.again = True
            return Aftermath(retry=True)
        if decision.attempt < MAX_ATTEMPTS:
            return self._fail(
                NotReady(
                    "the replica was lost while it worked on media that none has answered yet",
                    code="replica_lost_on_media",
                    remedy="send the request again; media that takes a replica along once more is quarantined",
                    retry_after_s=MEDIA_RETRY_AFTER_S,
                )
            )
        return self._fail(NotReady("two replicas were lost in turn", code="replica_lost", retry_after_s=RETRY_AFTER_S))

    # ---- sessions ---------------------------------------------------------------------------------------------------

    async def _of_session(self, key: str, refused: frozenset[ReplicaRef], now: float) -> tuple[Grant, ReplicaRef]:
        sure, last_known = self.leases.lookup(key, now), self.leases.lookup(key, now, sure=False)
        fleet = self._fleet_for(sure, refused, now)
        self.leases.begin(key)
        try:
            grant = None if sure is None else self.from_lease(sure, fleet, refused)
            if grant is None:
                try:
                    grant = await self.leases.acquire(key, fleet, refused, now)
                except TableAway:
                    grant = self.alone(key, last_known, fleet, refused)
            elif grant.replica is not None:
                self.leases.hit(key)
            return grant, self._granted(grant, fleet)
        except BaseException:  # cancelled by its client included: the request must not stay counted
            self.leases.end(key, now, accepted=False)
            raise

    def _fleet_for(self, lease: Lease | None, refused: frozenset[ReplicaRef], now: float) -> Fleet:
        """The whole fleet, unless the request stays at home, as most do: then the home alone decides."""
        if lease is not None:
            home = self.health.fleet(now, only=lease.home.id)
            if course(lease.home, home, mode=self.leases.rules.mode, refused=refused) is Course.STAY:
                return home
        return self.health.fleet(now)

    def from_lease(
        self, lease: Lease, fleet: Fleet, refused: frozenset[ReplicaRef] = frozenset(), *, dry: bool = False
    ) -> Grant | None:
        """What can be decided without the table; None where a home must be found. `dry` moves no cursor."""
        why = course(lease.home, fleet, mode=self.leases.rules.mode, refused=refused)
        if why in (Course.PLACE, Course.FOLLOW):
            return None
        known = Grant("", lease.home, Outcome.HIT, why, lease.home, lease.term, bound=True)
        if why is Course.STAY:
            return known
        if why is not Course.SPILL:
            return replace(known, replica=None, outcome=Outcome.NONE)
        others = fleet.ready({*refused, lease.home})
        other = self.spill_turn.peek(others) if dry else self.spill_turn.next(others)
        return replace(known, replica=other, outcome=Outcome.SPILLED)

    def alone(
        self, key: str, lease: Lease | None, fleet: Fleet, refused: frozenset[ReplicaRef] = frozenset(), *,
        dry: bool = False,
    ) -> Grant:  # fmt: skip
        """The table is away: what every gateway decides alike, for the table to adopt later."""
        if lease is None:
            chosen = rendezvous(key, fleet.homes(refused))
            return Grant("", chosen, Outcome.NEW, Course.PLACE, chosen, HASH_TERM)
        if grant := self.from_lease(lease, fleet, refused, dry=dry):
            return grant
        if course(lease.home, fleet, mode=self.leases.rules.mode, refused=refused) is Course.FOLLOW:
            again = ReplicaRef(lease.home.id, fleet.replicas[lease.home.id].incarnation)
            return Grant("", again, Outcome.MOVED, Course.FOLLOW, again, lease.term + 1)
        chosen = rendezvous(key, fleet.homes(refused))
        return Grant("", chosen, Outcome.MOVED, Course.PLACE, chosen, lease.term + 1)

    def _granted(self, grant: Grant, fleet: Fleet) -> ReplicaRef:
        """
        Raises:
            QueueFull, NotReady: why there is no replica.
        """
        if grant.replica is not None:
            return grant.replica
        if grant.why is Course.BUSY:
            raise NotReady("the session's replica is full", code="session_home_busy", retry_after_s=RETRY_AFTER_S)
        if grant.why is Course.LOST:
            raise NotReady("the session's replica is away", code="session_home_lost", retry_after_s=RETRY_AFTER_S)
        if fleet.busy():
            raise _saturated(None)
        remedy = "replicas load or are being replaced: GET /ready says what they wait for"
        raise NotReady("no replica is ready", code="no_replica", remedy=remedy, retry_after_s=RETRY_AFTER_S)

    def _check_media(self, media: Sequence[str], now: float) -> None:
        if any(self.suspects.quarantined(item, now) for item in media):
            raise ValidationFailed(
                "this media is quarantined: replicas died while they worked on it",
                code="media_quarantined",
                remedy="re-encode it, for instance: ffmpeg -i IN -c:v libx264 -pix_fmt yuv420p OUT.mp4",
            )

    def _unreserve(self, decision: Decision) -> None:
        if decision.key is not None and decision.reserved:
            self.leases.on_refused(decision.key.digest, decision.ref)

    def _end(self, decision: Decision, now: float) -> None:
        if decision.stage is Stage.OVER:
            return
        accepted = decision.stage is not Stage.CHOSEN
        decision.stage = Stage.OVER
        self.health.on_ended(decision.ref)
        self.suspects.leave(decision.ref, decision.media)
        if decision.key is not None:
            self.leases.end(decision.key.digest, now, accepted=accepted)

    def _fail(self, error: Cosmos3Error) -> Aftermath:
        self.counters.failures[error.stable_code] += 1
        return Aftermath(error=error)


def _saturated(retry_after_s: float | None) -> QueueFull:
    wait = RETRY_AFTER_S if retry_after_s is None else retry_after_s
    return QueueFull("every replica is full", code="fleet_saturated", retry_after_s=wait)
