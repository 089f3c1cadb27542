"""The router's decision, told instead of taken: what the explain endpoint shows."""

from __future__ import annotations

from dataclasses import dataclass

from cosmos3_serve.reasoner.fleet.replicas import Fleet, ReplicaRef, ReplicaState
from cosmos3_serve.reasoner.sessions.decide import NO_REFUSALS, decide
from cosmos3_serve.reasoner.sessions.keys import SessionKey
from cosmos3_serve.reasoner.sessions.lease import Lease
from cosmos3_serve.reasoner.sessions.messages import Peek, SessionView, TableAway, TableStats
from cosmos3_serve.reasoner.sessions.policy import Mode, Outcome, Profile
from cosmos3_serve.reasoner.sessions.router import Router


@dataclass(frozen=True, slots=True)
class ReplicaExplained:
    """`load`: answers that all gateways wait for; `live_sessions` as the table counts them, None if it is away."""

    id: str
    incarnation: int
    state: ReplicaState
    load: int
    live_sessions: int | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """
    Args:
        key: digest of the session's key, None for a request without a session.
        outcome, replica: what the next request would get; `replica` None if it would be refused.
        home: where the session is bound; `pending`: where a request of it is on its way.
        expires_in_s: idle seconds left, None without a binding or while a request is in flight.
        steps: the trace, one sentence each.
        counters: per replica id, see `ReplicaCounts`.
    """

    profile: Profile
    mode: Mode
    key: str | None
    source: str | None
    outcome: Outcome
    replica: ReplicaRef | None
    home: ReplicaRef | None
    pending: ReplicaRef | None
    expires_in_s: float | None
    steps: tuple[str, ...]
    replicas: tuple[ReplicaExplained, ...]
    counters: dict[str, dict[str, int]]


@dataclass(slots=True)
class _Told:
    outcome: Outcome = Outcome.NONE
    replica: ReplicaRef | None = None
    home: ReplicaRef | None = None
    pending: ReplicaRef | None = None
    expires_in_s: float | None = None


async def explain(router: Router, key: SessionKey | None, now: float) -> Explanation:
    """What the next request of this session would get, and why. Changes no state, neither here nor in the table."""
    fleet = router.health.fleet(now)
    steps: list[str] = []
    stats = await _stats(router, now, steps)
    if router.profile is Profile.ROUND_ROBIN or key is None:
        steps.append("round robin ignores sessions" if key else "the request belongs to no session")
        choice = decide(None, None, fleet, NO_REFUSALS, now, mode=router.leases.rules.mode, binds=False)
        told = _Told(replica=router.turn.peek(choice.candidates))
    else:
        steps.append(f"session key from {key.source}")
        lease = router.leases.lookup(key.digest, now)
        local = _from_lease(router, key.digest, lease, fleet, now, steps) if lease else None
        told = local or await _from_table(router, key.digest, fleet, now, steps)
    if told.replica is None:
        steps.append("no replica would take it now")
    return Explanation(
        profile=router.profile,
        mode=router.leases.rules.mode,
        key=key.digest if key else None,
        source=key.source if key else None,
        outcome=told.outcome,
        replica=told.replica,
        home=told.home,
        pending=told.pending,
        expires_in_s=told.expires_in_s,
        steps=tuple(steps),
        replicas=tuple(
            ReplicaExplained(
                id=name,
                incarnation=view.incarnation,
                state=view.state,
                load=router.health.load(ReplicaRef(name, view.incarnation), now),
                live_sessions=None if stats is None else stats.live.get(name, 0),
            )
            for name, view in sorted(fleet.replicas.items())
        ),
        counters=router.counters.rows(stats.expired if stats else None),
    )


async def _stats(router: Router, now: float, steps: list[str]) -> TableStats | None:
    if router.profile is Profile.ROUND_ROBIN:
        return None
    if not router.leases.away(now):
        try:
            return await router.leases.port.stats()
        except TableAway:
            pass
    steps.append("the session table is away")
    return None


def _from_lease(router: Router, key: str, lease: Lease, fleet: Fleet, now: float, steps: list[str]) -> _Told | None:
    """What this gateway decides without the table; None where a home must be found."""
    grant = router.from_lease(lease, fleet, now, dry=True)
    why = "its home must be replaced" if grant is None else grant.why
    steps.append(f"this gateway knows its home {lease.home.id}: {why}")
    if grant is None:
        return None
    idle_s = now - lease.ended_at
    expires = None if router.leases.live(key) else router.leases.rules.ttl_s - idle_s
    return _Told(grant.outcome, grant.replica, lease.home, expires_in_s=expires)


async def _from_table(router: Router, key: str, fleet: Fleet, now: float, steps: list[str]) -> _Told:
    view: SessionView | None = None
    if not router.leases.away(now):
        try:
            view = await router.leases.port.peek(Peek(key, fleet, known=router.leases.known(key, now)))
        except TableAway:
            view = None
    if view is None:
        return _alone(router, key, fleet, now, steps)
    steps.append(f"the table says: {view.would.why}")
    expires = None if view.home is None or view.live else router.leases.rules.ttl_s - view.idle_s
    return _Told(view.would.outcome, view.would.replica, view.home, view.pending, expires)


def _alone(router: Router, key: str, fleet: Fleet, now: float, steps: list[str]) -> _Told:
    steps.append("without the table this gateway decides by hash, as the others do")
    lease = router.leases.lookup(key, now, sure=False)
    grant = router.alone(key, lease, fleet, now, dry=True)
    return _Told(grant.outcome, grant.replica, lease.home if lease else None)
