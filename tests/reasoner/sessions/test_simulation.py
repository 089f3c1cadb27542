"""Ten thousand events against two gateways and a table, with every invariant checked after each.

Arrivals (single, bursts, with and without session or media), acceptances, ends, refusals of every kind, deaths,
restarts, joins, leaves, drains, load reports, connections lost by one gateway only, a table that is away, restarts
empty, or answers into the void, and reports that come late. Seeded: a failure is repeated by its seed and mode.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from support.router_fleet import World, key

from cosmos3_serve.errors import Cosmos3Error
from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef, ReplicaState
from cosmos3_serve.reasoner.sessions.placement import RoundRobin
from cosmos3_serve.reasoner.sessions.policy import Mode, Outcome
from cosmos3_serve.reasoner.sessions.router import MAX_ATTEMPTS, Aftermath, Decision, Refused, Router, Stage, refusals
from cosmos3_serve.reasoner.sessions.suspects import Aboard

EVENTS = 10_000
WEIGHTS = {
    "arrive": 30, "burst": 2, "accept": 28, "finish": 26, "leave": 2, "refuse": 5, "tick": 16, "flush": 14, "kill": 1,
    "restart": 3, "join": 1, "retire": 1, "drain": 1, "undrain": 2, "load": 4, "partition": 1, "table_away": 0.4,
    "table_back": 1.5, "table_restart": 0.3, "lose_reply": 1, "long_pause": 0.2, "converge": 0.2,
}  # fmt: skip


class WatchedTurn(RoundRobin):
    """The table's own cursor, which proves the load bound at each choice. It is not asked while the table recovers."""

    def __init__(self, world: World, bounded: Counter[int]) -> None:
        super().__init__()
        self._world, self._bounded = world, bounded

    def next(self, eligible: Sequence[ReplicaRef], load: Mapping[str, int] | None = None) -> ReplicaRef | None:
        table = self._world.host.table
        assert self._world.clock.table >= table._recover_until, "a turn taken while the table recovers"
        assert load is not None, "a session is placed without the load bound"
        assert load == table._bindings.load, "a bound over other numbers than the table's"
        chosen = super().next(eligible, load)
        if chosen is not None:
            mean = sum(load.get(ref.id, 0) for ref in eligible) / len(eligible)
            assert load.get(chosen.id, 0) <= mean + 1, (chosen, load)
            self._bounded[len(eligible)] += 1
        return chosen


@dataclass
class Flight:
    """One request: the attempts it has made and the one that runs, `reached`."""

    gateway: int
    session: str | None
    request: Aboard
    n: int
    decision: Decision
    reached: int = 1


@dataclass
class Simulation:
    seed: int
    mode: Mode
    arrived: int = 0
    answered: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    told: list[Counter[str]] = field(default_factory=lambda: [Counter(), Counter()])  # by gateway: errors given out
    retried: Counter[int] = field(default_factory=Counter)  # by gateway
    ends: Counter[str] = field(default_factory=Counter)  # what the router said after refusals and deaths
    bounded: Counter[int] = field(default_factory=Counter)  # choices whose load bound was proved, by eligible replicas
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    accepted: set[tuple[str, ReplicaRef]] = field(default_factory=set)
    flights: list[Flight] = field(default_factory=list)
    lives: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.world = World(replicas=4, gateways=2, mode=self.mode, ttl_s=60, max_sessions=40, max_num_seqs=6)
        self.lives = dict.fromkeys(self.world.specs, 1)  # the highest incarnation of each name
        self.alive = {spec.ref for spec in self.world.specs.values()}
        self.watch()

    def watch(self) -> None:
        self.world.host.table._turn = WatchedTurn(self.world, self.bounded)

    # ---- requests ---------------------------------------------------------------------------------------------------

    async def arrive(self, session: str | None = None, gateway: int | None = None) -> None:
        self.arrived += 1
        gateway = self.rng.randrange(2) if gateway is None else gateway
        if session is None and self.rng.random() < 0.9:
            session = f"s{self.rng.randrange(60)}"
        # Some media comes once: no replica has answered about it before.
        known = f"m{self.rng.randrange(30)}" if self.rng.random() < 0.7 else f"once{self.arrived}"
        media = (known,) if self.rng.random() < 0.5 else ()
        digest = f"q{self.rng.randrange(30)}" if self.rng.random() < 0.7 else f"only{self.arrived}"
        n = self.rng.choice((1, 1, 1, 1, 1, 2, 7))
        await self.choose(gateway, session, Aboard(digest, media), n, None)

    async def choose(self, gateway: int, session: str | None, request: Aboard, n: int, after: Flight | None) -> None:
        router = self.world.routers[gateway]
        last = after.decision if after else None
        try:
            decision = await router.choose(
                key(session) if session else None, self.world.now, request=request, n=n, after=last
            )
        except Cosmos3Error as error:
            self.turned_away(gateway, session, request, n, last, error)
            return
        self.outcomes[decision.outcome] += 1
        reached = after.reached + 1 if after else 1
        assert reached == decision.attempt <= MAX_ATTEMPTS
        if after:
            self.retried[gateway] += 1
            assert decision.ref != after.decision.ref, "a second attempt where the first one failed"
        self.flights.append(Flight(gateway, session, request, n, decision, reached))

    def turned_away(
        self, gateway: int, session: str | None, request: Aboard, n: int, after: Decision | None, error: Cosmos3Error
    ) -> None:
        """No request is lost: one is turned away only if nobody may take it, and is told when to come again."""
        router, code = self.world.routers[gateway], error.stable_code
        if code == "media_quarantined":
            assert error.status == 422
            assert any(router.suspects.quarantined(item, self.world.now) for item in request.media)
        elif code == "request_quarantined":
            assert error.status == 422
            assert router.suspects.quarantined(request.digest, self.world.now)
        elif code == "request_suspected":
            assert (error.status, after) == (503, None)
            assert any(router.suspects.held(item, self.world.now) for item in (request.digest, *request.media))
        elif code in ("session_home_busy", "session_home_lost"):
            assert (error.status, self.mode) == (503, Mode.HARD)
            assert session
        else:
            assert (code, error.status) in (("fleet_saturated", 429), ("no_replica", 503))
            ready = self.with_room(router, n, after)
            assert not ready, f"{code}, and {ready} would have taken the request"
        assert error.retry_after_s or code.endswith("_quarantined")
        self.told[gateway][code] += 1
        self.failed[code] += 1

    def with_room(self, router: Router, n: int, after: Decision | None) -> list[ReplicaRef]:
        """By the router's own numbers, and not by its decision."""
        now, refused = self.world.now, {} if after is None else refusals(after)
        return [
            r.spec.ref
            for r in router.health._records.values()
            if r.spec.phase is ReplicaState.READY
            and not r.dead
            and router.health.load(r.spec.ref, now) < r.spec.max_num_seqs
            and not (now < r.full_until and n >= r.full_for)
            and not now < refused.get(r.spec.ref, 0.0)
        ]

    async def burst(self) -> None:
        session = f"s{self.rng.randrange(60)}"
        await asyncio.gather(*(self.arrive(session, i % 2) for i in range(6)))

    def pick(self, *stages: Stage) -> Flight | None:
        found = [f for f in self.flights if f.decision.stage in stages]
        return self.rng.choice(found) if found else None

    async def accept(self) -> None:
        if flight := self.pick(Stage.CHOSEN):
            if flight.decision.ref not in self.alive:
                await self.refused(flight, Refused.UNREACHABLE)
                return
            if flight.session:
                self.accepted.add((flight.session, flight.decision.ref))
            self.router(flight).on_accepted(flight.decision, self.world.now)
            if self.rng.random() < 0.8:
                self.router(flight).on_first_token(flight.decision, self.world.now)

    async def finish(self) -> None:
        if flight := self.pick(Stage.ACCEPTED, Stage.ANSWERING):
            self.router(flight).on_first_token(flight.decision, self.world.now)
            self.router(flight).on_completed(flight.decision)
            self.router(flight).on_finished(flight.decision, self.world.now)
            self.flights.remove(flight)
            self.answered += 1

    async def leave(self) -> None:
        if flight := self.pick(Stage.CHOSEN, Stage.ACCEPTED):
            self.router(flight).on_finished(flight.decision, self.world.now)
            self.flights.remove(flight)
            self.failed["client_left"] += 1

    async def refuse(self) -> None:
        if flight := self.pick(Stage.CHOSEN):
            await self.refused(flight, self.rng.choice(list(Refused)))

    async def refused(self, flight: Flight, why: Refused) -> None:
        end = self.router(flight).on_refused(flight.decision, self.world.now, why)
        if why in (Refused.CLIENT_ERROR, Refused.SERVER_ERROR):
            due = "passed_on"
        elif why is Refused.TIMED_OUT:
            due = "replica_timeout"
        elif flight.reached < MAX_ATTEMPTS:
            due = "retry"
        else:
            due = "fleet_saturated" if why is Refused.SATURATED else "replica_lost"
        await self.after(flight, end, due)

    async def died(self, flight: Flight) -> None:
        """What is due is in docs/contract.md 9, Retry."""
        router = self.router(flight)
        digest, media = flight.request
        proven = all(map(router.suspects.proven, media or (digest,)))
        first = flight.reached < MAX_ATTEMPTS and flight.decision.stage is not Stage.ANSWERING
        lost_on = "replica_lost_on_media" if media else "replica_lost_on_request"
        due = "replica_lost" if not first else "retry" if proven and not flight.decision.suspect else lost_on
        await self.after(flight, router.on_died(flight.decision, self.world.now), due)

    async def after(self, flight: Flight, end: Aftermath, due: str) -> None:
        """No request is lost: it is tried again, or its client is told why not, or gets the replica's own answer."""
        given = "retry" if end.retry else end.error.stable_code if end.error else "passed_on"
        assert given == due, (given, due, flight)
        assert not (end.retry and end.error), "both tried again and answered"
        self.flights.remove(flight)
        self.ends[given] += 1
        if end.retry:
            await self.choose(flight.gateway, flight.session, flight.request, flight.n, flight)
            return
        self.failed[given] += 1
        if end.error:
            assert end.error.retry_after_s or end.error.remedy
            self.told[flight.gateway][given] += 1

    # ---- replicas ---------------------------------------------------------------------------------------------------

    def some_replica(self) -> ReplicaRef | None:
        return self.rng.choice(sorted(s.ref for s in self.world.specs.values())) if self.world.specs else None

    async def kill(self) -> None:
        ref = self.some_replica()
        if ref in self.alive:
            self.alive.discard(ref)
            if self.rng.random() < 0.7:  # else the machine is lost, and nobody says why
                self.world.engine_died(ref)
            for flight in [f for f in self.flights if f.decision.ref == ref]:
                await self.died(flight)

    async def restart(self) -> None:
        dead = sorted(s.ref for s in self.world.specs.values() if s.ref not in self.alive)
        if dead:
            self.launch(self.rng.choice(dead).id)

    def launch(self, name: str) -> None:
        self.lives[name] = self.lives.get(name, 0) + 1
        self.world.set_replica(name, self.lives[name])
        self.alive.add(self.world.specs[name].ref)

    async def join(self) -> None:
        spare = [n for n in ("r0", "r1", "r2", "r3", "r4", "r5", "r6") if n not in self.world.specs]
        if spare:
            self.launch(self.rng.choice(spare))

    async def retire(self) -> None:
        ref = self.some_replica()
        if ref and len(self.world.specs) > 2 and not any(f.decision.ref == ref for f in self.flights):
            self.world.remove(ref.id)
            self.alive.discard(ref)

    async def drain(self) -> None:
        if ref := self.some_replica():
            self.world.set_replica(ref.id, ref.incarnation, ReplicaState.DRAINING)

    async def undrain(self) -> None:
        for spec in [s for s in self.world.specs.values() if s.phase is not ReplicaState.READY]:
            self.world.set_replica(spec.ref.id, spec.ref.incarnation)

    async def load(self) -> None:
        if ref := self.some_replica():
            self.rng.choice(self.world.routers).health.on_others({ref: self.rng.randrange(9)}, self.world.now)

    async def partition(self) -> None:
        if ref := self.some_replica():
            self.rng.choice(self.world.routers).health.on_unreachable(ref, self.world.now)

    # ---- table and time ---------------------------------------------------------------------------------------------

    async def table_away(self) -> None:
        self.world.host.away = True

    async def table_back(self) -> None:
        self.world.host.away = False

    async def table_restart(self) -> None:
        self.world.host.restart()
        self.watch()

    async def lose_reply(self) -> None:
        self.world.host.lose_replies = 1

    async def flush(self) -> None:
        await self.world.flush(self.rng.randrange(2))

    async def tick(self) -> None:
        self.world.tick(self.rng.random() * 1.5)
        for router in self.world.routers:
            for ref, _ in router.health.take_probes(self.world.now):
                router.health.on_probe(ref, ref in self.alive, self.world.now)

    async def long_pause(self) -> None:
        self.world.tick(self.rng.uniform(20, 90))

    async def converge(self) -> None:
        self.world.host.away, self.world.host.lose_replies = False, 0
        await self.world.converge()
        self.check_agreement()

    # ---- invariants -------------------------------------------------------------------------------------------------

    def router(self, flight: Flight) -> Router:
        return self.world.routers[flight.gateway]

    def check(self) -> None:
        rows = self.world.host.table._bindings
        assert len(rows) <= self.world.rules.max_sessions
        for name, entry in rows._entries.items():
            assert entry.home is None or (name, entry.home) in self.accepted, "bound without an acceptance"
            assert entry.home or entry.holders, "kept for nobody"
            assert entry.pending is None or entry.holders, "reserved for nobody"
        places = (e.pending or e.home for e in rows._entries.values() if e.holders)
        assert dict(rows.load) == Counter(p.id for p in places if p), "load drifted"
        assert set(rows._idle._since) == {name for name, e in rows._entries.items() if not e.holders}
        for index, router in enumerate(self.world.routers):
            mine = [f for f in self.flights if f.gateway == index]
            assert dict(router.counters.failures) == self.told[index], "counted otherwise than clients were told"
            assert router.counters.retries == self.retried[index]
            assert len(router.leases) <= self.world.rules.max_sessions
            assert dict(router.leases._live) == Counter(f.session for f in mine if f.session)
            assert router.leases._dirty.keys() <= router.leases._leases.keys()
            for name, lease in router.leases._leases.items():
                assert (name, lease.home) in self.accepted, "a lease without an acceptance"
            flying: Counter[ReplicaRef] = Counter()
            for flight in mine:
                flying[flight.decision.ref] += flight.n
            for record in router.health._records.values():
                assert record.in_flight == flying[record.spec.ref]

    def check_agreement(self) -> None:
        """Nobody has anything left to tell: a session has one home, whoever is asked."""
        entries = self.world.host.table._bindings._entries
        homes = [self.world.homes(g) for g in (0, 1)]
        for name in homes[0].keys() & homes[1].keys():
            assert homes[0][name] == homes[1][name], name
        for name, entry in entries.items():
            for known in homes:
                assert entry.home is None or known.get(name, entry.home) == entry.home, name
        live = Counter(f.session for f in self.flights if f.session)
        for name, entry in entries.items():
            assert entry.live() == live[name], "counts of requests drifted"

    async def run(self) -> None:
        names, weights = list(WEIGHTS), list(WEIGHTS.values())
        for _ in range(EVENTS):
            event = self.rng.choices(names, weights)[0]
            if event in ("arrive", "burst") and len(self.flights) > 60:
                event = "finish"
            await getattr(self, event)()
            self.check()
        while self.flights:
            await self.accept()
            await self.finish()
        await self.converge()
        self.check()
        assert self.arrived == self.answered + self.failed.total(), "this simulation has lost a request itself"


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 20))])
async def test_ten_thousand_events(seed: int, mode: Mode) -> None:
    simulation = Simulation(seed, mode)
    await simulation.run()
    assert simulation.world.host.table.stats().live == {}
    assert simulation.answered > 1_500, "it must serve, not only refuse"
    assert sum(n for eligible, n in simulation.bounded.items() if eligible > 1) > 200, "the load bound was at stake"
    for code in (
        "retry",
        "replica_lost",
        "replica_lost_on_media",
        "replica_lost_on_request",
        "replica_timeout",
        "passed_on",
    ):
        assert simulation.ends[code] > 2, f"{code}: every way in which a request can end must be taken"
    assert all(simulation.outcomes[o] > 20 for o in (Outcome.NEW, Outcome.HIT, Outcome.MOVED, Outcome.NONE))
    assert simulation.outcomes[Outcome.SPILLED] > (20 if mode is Mode.SOFT else -1)
