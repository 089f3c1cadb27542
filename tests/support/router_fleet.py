"""Gateways, replicas and a session table in one process under one hand-turned clock; no sleeping, no sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from cosmos3_serve.reasoner.fleet.health import HealthBook, ReplicaSpec
from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef, ReplicaState
from cosmos3_serve.reasoner.sessions.keys import SessionKey
from cosmos3_serve.reasoner.sessions.lease import LeaseCache
from cosmos3_serve.reasoner.sessions.messages import (
    Acquire,
    Flush,
    FlushReply,
    Grant,
    PageAsk,
    Peek,
    SessionPage,
    SessionView,
    TableAway,
    TableStats,
)
from cosmos3_serve.reasoner.sessions.policy import AffinityRules, Mode, Profile
from cosmos3_serve.reasoner.sessions.router import Decision, Router
from cosmos3_serve.reasoner.sessions.suspects import Aboard, SuspectTracker
from cosmos3_serve.reasoner.sessions.table import SessionTable

USUAL = "the digest of a question that was answered before"


@dataclass(slots=True)
class Clock:
    """Seconds; gateways and table read different zero points, as on different machines."""

    now: float = 1000.0
    table_offset: float = 7_777.0

    @property
    def table(self) -> float:
        return self.now + self.table_offset


def key(name: str) -> SessionKey:
    return SessionKey(name, "X-Session-ID")


@dataclass
class TableHost:
    """The table's owner: may be away, and restarts empty with a new generation."""

    rules: AffinityRules
    clock: Clock
    away: bool = False
    generation: int = 1
    acquired: int = 0
    lose_replies: int = 0
    grants: list[tuple[Acquire, Grant, dict[str, int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.table = SessionTable(self.rules, f"g{self.generation}")

    def restart(self, *, recover_s: float = 2.0) -> None:
        self.generation += 1
        until = self.clock.table + recover_s
        self.table = SessionTable(self.rules, f"g{self.generation}", recover_until=until)

    # SessionTablePort ------------------------------------------------------------------------------------------------

    async def acquire(self, message: Acquire) -> Grant:
        await asyncio.sleep(0)  # other requests run meanwhile, as they would during a remote call
        self._check()
        self.acquired += 1
        load = dict(self.table.stats().live)
        grant = self.table.acquire(message, self.clock.table)
        self.grants.append((message, grant, load))
        self._check_reply()
        return grant

    async def flush(self, message: Flush) -> FlushReply:
        await asyncio.sleep(0)
        self._check()
        reply = self.table.flush(message, self.clock.table)
        self._check_reply()
        return reply

    async def peek(self, message: Peek) -> SessionView:
        self._check()
        return self.table.peek(message, self.clock.table)

    async def page(self, message: PageAsk) -> SessionPage:
        self._check()
        return self.table.page(message, self.clock.table)

    async def stats(self) -> TableStats:
        self._check()
        return self.table.stats()

    def _check(self) -> None:
        if self.away:
            raise TableAway

    def _check_reply(self) -> None:
        if self.lose_replies:
            self.lose_replies -= 1
            raise TableAway


class World:
    """`gateways` routers before `replicas` replicas named r0, r1, …; the control plane tells every gateway the same."""

    def __init__(
        self,
        *,
        replicas: int = 4,
        gateways: int = 1,
        mode: Mode = Mode.SOFT,
        profile: Profile = Profile.SESSION_AFFINITY,
        ttl_s: float = 300.0,
        max_sessions: int = 65_536,
        max_num_seqs: int = 256,
    ) -> None:
        self.clock = Clock()
        self.rules = AffinityRules(ttl_s=ttl_s, mode=mode, max_sessions=max_sessions)
        self.host = TableHost(self.rules, self.clock)
        self.max_num_seqs = max_num_seqs
        self.specs = {f"r{i}": self._spec(f"r{i}", 1) for i in range(replicas)}
        self.routers = [self._gateway(f"gw{i}", profile) for i in range(gateways)]
        self.sync()

    @property
    def router(self) -> Router:
        return self.routers[0]

    @property
    def now(self) -> float:
        return self.clock.now

    def tick(self, seconds: float) -> None:
        self.clock.now += seconds

    # ---- control plane ----------------------------------------------------------------------------------------------

    def sync(self) -> None:
        for router in self.routers:
            router.health.sync(self.specs.values())

    def set_replica(self, name: str, incarnation: int = 1, phase: ReplicaState = ReplicaState.READY) -> None:
        self.specs[name] = self._spec(name, incarnation, phase)
        self.sync()

    def remove(self, name: str) -> None:
        del self.specs[name]
        self.sync()

    def fill(self, name: str, requests: int) -> None:
        """Every gateway hears that the others wait for `requests` answers more there."""
        ref = self.specs[name].ref
        for router in self.routers:
            now = {r.spec.ref: r.others for r in router.health._records.values()}
            router.health.on_others({**now, ref: now[ref] + requests}, self.now)

    def engine_died(self, ref: ReplicaRef) -> None:
        """The replica tells the registry that its engine died under it."""
        self.host.table.on_engine_ended(ref)

    # ---- requests ---------------------------------------------------------------------------------------------------

    async def ask(self, name: str | None, gateway: int = 0, **how: object) -> Decision:
        """One request from start to end, accepted and answered."""
        router = self.routers[gateway]
        decision = await self.start(name, gateway, **how)
        router.on_accepted(decision, self.now)
        router.on_first_token(decision, self.now)
        router.on_completed(decision)
        router.on_finished(decision, self.now)
        return decision

    async def start(
        self, name: str | None, gateway: int = 0, *, digest: str = USUAL, media: Sequence[str] = (),
        **how: object,
    ) -> Decision:  # fmt: skip
        """A request that was sent; the replica has not answered yet."""
        how["request"] = Aboard(digest, tuple(media))
        return await self.routers[gateway].choose(key(name) if name else None, self.now, **how)  # type: ignore[arg-type]

    async def flush(self, *gateways: int) -> None:
        for index in gateways or range(len(self.routers)):
            await self.routers[index].leases.flush(self.now)

    async def converge(self) -> None:
        """Flush until nobody has anything to say: twice more than the longest chain of tellings."""
        for _ in range(6):
            self.tick(self.rules.flush_interval_s)
            await self.flush()

    def homes(self, gateway: int = 0) -> dict[str, ReplicaRef]:
        """Every session that a gateway believes alive, with its home."""
        leases = self.routers[gateway].leases
        return {k: found.home for k in leases._leases if (found := leases.lookup(k, self.now, sure=False))}

    def _spec(self, name: str, incarnation: int, phase: ReplicaState = ReplicaState.READY) -> ReplicaSpec:
        return ReplicaSpec(ReplicaRef(name, incarnation), self.max_num_seqs, phase)

    def _gateway(self, name: str, profile: Profile) -> Router:
        suspects, health = SuspectTracker(judge=False), HealthBook()
        suspects.on_completed(USUAL)
        leases = LeaseCache(name, self.host, self.rules, suspects, health, lambda: self.now)
        return Router(profile, health, leases, suspects)
