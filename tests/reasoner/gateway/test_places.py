"""Waiting lines, routers and a table under simulated time: whoever can be placed is placed, and explained beforehand.

Two gateways with two tenants ask for one to forty answers, engines refuse, fail, die and come back, the table is away.
After every event: no replica with room stands idle while somebody waits for whom it has room, by the replica's own
numbers and not by the router's decision. Explanations are compared with what happens next. Seeded.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from support.router_fleet import USUAL, World, key

from cosmos3_serve.errors import Cosmos3Error
from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef, ReplicaState
from cosmos3_serve.reasoner.gateway.line import WaitingLine
from cosmos3_serve.reasoner.sessions.explain import explain
from cosmos3_serve.reasoner.sessions.policy import Mode
from cosmos3_serve.reasoner.sessions.router import Decision, Refused, refusals
from cosmos3_serve.reasoner.sessions.suspects import Aboard

EVENTS = 1_500
SEATS = 4
REQUEST = Aboard(USUAL)


async def settle() -> None:
    for _ in range(60):
        await asyncio.sleep(0)


@dataclass(eq=False)
class Asker:
    """One question: `decision` while a replica has it, `waiting` while it stands in line."""

    gateway: int
    tenant: str
    session: str | None
    n: int
    decision: Decision | None = None
    after: Decision | None = None
    task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> bool:
        return self.task is not None and not self.task.done()


@dataclass
class Places:
    seed: int
    mode: Mode
    askers: list[Asker] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    explained: Counter[str] = field(default_factory=Counter)
    most_waiting: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.world = World(replicas=3, gateways=2, mode=self.mode, max_num_seqs=SEATS)
        self.lines = [WaitingLine(1000, 10_000) for _ in self.world.routers]
        self.lives = Counter(list(self.world.specs))

    def some(self, found: list[Asker]) -> Asker | None:
        return self.rng.choice(found) if found else None

    # ---- events -----------------------------------------------------------------------------------------------------

    async def arrive(self) -> None:
        session = f"s{self.rng.randrange(12)}" if self.rng.random() < 0.8 else None
        n = self.rng.choice((1, 1, 1, 1, 2, 40))
        asker = Asker(self.rng.randrange(2), self.rng.choice("ab"), session, n)
        told = None
        if n == 1 and not self.lines[asker.gateway]:
            told = await explain(self.world.routers[asker.gateway], self.key(asker), self.world.now)
        self.askers.append(asker)
        self.ask(asker)
        await settle()
        if told is not None:
            got = asker.decision
            assert (told.replica, told.outcome) == ((got.ref, got.outcome) if got else (None, told.outcome))
            self.explained["placed" if got else "not"] += 1

    def key(self, asker: Asker):  # type: ignore[no-untyped-def]
        return key(asker.session) if asker.session else None

    def ask(self, asker: Asker) -> None:
        router, world, after = self.world.routers[asker.gateway], self.world, asker.after

        async def place() -> None:
            try:
                asker.decision = await self.lines[asker.gateway].place(
                    lambda: router.choose(self.key(asker), world.now, request=REQUEST, n=asker.n, after=after),
                    room=lambda: router.has_room(world.now, asker.n, after),
                    shape=(asker.n, () if after is None else tuple(refusals(after).items())),
                    owner=asker.tenant,
                    n=asker.n,
                )
            except Cosmos3Error as error:
                self.ends[error.stable_code] += 1
                self.askers.remove(asker)

        asker.task = asyncio.create_task(place())

    def over(self, asker: Asker, again: bool) -> None:
        asker.after, asker.decision = asker.decision, None
        if again:
            self.ask(asker)
        else:
            self.askers.remove(asker)

    async def finish(self) -> None:
        if asker := self.some([a for a in self.askers if a.decision]):
            assert asker.decision is not None
            router = self.world.routers[asker.gateway]
            router.on_first_token(asker.decision, self.world.now)
            router.on_finished(asker.decision, self.world.now)
            self.ends["answered"] += 1
            self.over(asker, again=False)

    async def refuse(self) -> None:
        if asker := self.some([a for a in self.askers if a.decision]):
            assert asker.decision is not None
            why = self.rng.choice((Refused.SATURATED, Refused.SATURATED, Refused.SERVER_ERROR, Refused.UNREACHABLE))
            hold = self.rng.choice((None, 3.0, 30.0))
            router = self.world.routers[asker.gateway]
            end = router.on_refused(asker.decision, self.world.now, why, retry_after_s=hold)
            self.ends[why.value] += 1
            self.over(asker, again=end.retry)

    async def kill(self) -> None:
        name = self.rng.choice(sorted(self.world.specs))
        for asker in [a for a in self.askers if a.decision and a.decision.replica == name]:
            assert asker.decision is not None
            end = self.world.routers[asker.gateway].on_died(asker.decision, self.world.now)
            self.over(asker, again=end.retry)
        self.lives[name] += 1
        self.world.set_replica(name, self.lives[name])

    async def tick(self) -> None:
        self.world.tick(self.rng.random())
        for router in self.world.routers:
            for ref, _ in router.health.take_probes(self.world.now):
                router.health.on_probe(ref, self.rng.random() < 0.8, self.world.now)

    async def flush(self) -> None:
        await self.world.flush(self.rng.randrange(2))

    async def table(self) -> None:
        self.world.host.away = not self.world.host.away

    # ---- what must hold ---------------------------------------------------------------------------------------------

    def idle_beside(self, asker: Asker) -> list[ReplicaRef]:
        router, now = self.world.routers[asker.gateway], self.world.now
        refused = {} if asker.after is None else refusals(asker.after)
        return [
            r.spec.ref
            for r in router.health._records.values()
            if not r.dead
            and r.spec.phase is ReplicaState.READY
            and router.health.load(r.spec.ref, now) < SEATS
            and not (now < r.full_until and asker.n >= r.full_for)
            and not now < refused.get(r.spec.ref, 0.0)
        ]

    async def check(self) -> None:
        for line in self.lines:
            line.wake()
        await settle()
        waiting = [a for a in self.askers if a.waiting]
        self.most_waiting = max(self.most_waiting, len(waiting))
        assert len(waiting) == sum(map(len, self.lines))
        for asker in waiting:
            assert not self.idle_beside(asker), "a replica with room, and somebody waits for it"

    async def run(self) -> None:
        events = {"arrive": 34, "finish": 26, "refuse": 4, "kill": 0.5, "tick": 12, "flush": 12, "table": 0.5}
        for _ in range(EVENTS):
            (event,) = self.rng.choices(list(events), list(events.values()))
            await getattr(self, event)()
            await self.check()
        while self.askers:
            await self.finish()
            await self.tick()
            await self.flush()
            await self.check()


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
async def test_whoever_can_be_placed_is_placed(seed: int, mode: Mode) -> None:
    places = Places(seed, mode)
    await places.run()
    assert places.ends["answered"] > 300
    assert places.most_waiting > (10 if mode is Mode.SOFT else 0)
    assert places.explained["placed"] > 20
    assert min(places.ends[why] for why in ("saturated", "server_error", "unreachable")) > 1
