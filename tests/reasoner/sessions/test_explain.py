"""Explaining changes nothing, and what it says comes true."""

import pytest
from support.router_fleet import World, key

from cosmos3_serve.reasoner.fleet.replicas import ReplicaState
from cosmos3_serve.reasoner.sessions.explain import explain
from cosmos3_serve.reasoner.sessions.policy import Mode, Outcome, Profile


async def check(world: World, name: str | None, gateway: int = 0) -> Outcome:
    """Explain twice, then ask: the same replica and outcome each time."""
    router = world.routers[gateway]
    told = [await explain(router, key(name) if name else None, world.now) for _ in range(2)]
    assert told[0] == told[1]
    decision = await world.ask(name, gateway)
    assert (told[0].replica, told[0].outcome) == (decision.ref, decision.outcome)
    return decision.outcome


async def test_what_is_told_comes_true() -> None:
    world = World(gateways=2)
    assert await check(world, None) is Outcome.NONE
    assert await check(world, "s") is Outcome.NEW
    assert await check(world, "s") is Outcome.HIT
    await world.flush()
    world.routers[1].leases._leases.clear()
    assert await check(world, "s", 1) is Outcome.HIT, "told by the table"
    world.set_replica("r0", phase=ReplicaState.DRAINING)
    assert await check(world, "s") is Outcome.MOVED
    world.fill("r1", 256)
    assert await check(world, "s") is Outcome.SPILLED
    world.fill("r1", -256)
    world.host.away = True
    assert await check(world, "unknown") is Outcome.NEW
    world.set_replica("r1", incarnation=2)
    assert await check(world, "s") is Outcome.MOVED


async def test_round_robin_says_that_it_ignores_the_session() -> None:
    world = World(profile=Profile.ROUND_ROBIN)
    told = await explain(world.router, key("s"), world.now)
    assert told.steps == ("round robin ignores sessions",)
    assert await check(world, "s") is Outcome.NONE


async def test_it_shows_replicas_time_left_and_counters() -> None:
    world = World(replicas=2)
    await world.ask("s")
    await world.flush()
    world.tick(100)
    world.set_replica("r1", phase=ReplicaState.STARTING)
    await world.start("t")
    told = await explain(world.router, key("s"), world.now)
    assert told.expires_in_s == pytest.approx(200)
    assert [(r.id, r.state, r.load, r.live_sessions) for r in told.replicas] == [
        ("r0", ReplicaState.READY, 1, 1),
        ("r1", ReplicaState.STARTING, 0, 0),
    ]
    assert told.counters["r0"]["new"] == 1
    world.tick(300)
    await world.flush()
    told = await explain(world.router, key("s"), world.now)
    assert told.counters["r0"]["expired"] == 1
    assert told.outcome is Outcome.NEW


async def test_a_refusal_is_told_with_its_reason() -> None:
    world = World(mode=Mode.HARD, replicas=2)
    home = await world.ask("s")
    world.set_replica(home.replica, phase=ReplicaState.DRAINING)
    told = await explain(world.router, key("s"), world.now)
    assert told.replica is None
    assert told.home == home.ref
    assert any("lost" in step for step in told.steps)
    assert told.steps[-1] == "no replica would take it now"


async def test_without_the_table_it_still_explains() -> None:
    world = World()
    world.host.away = True
    told = await explain(world.router, key("s"), world.now)
    assert told.outcome is Outcome.NEW
    assert {r.live_sessions for r in told.replicas} == {None}
    assert "the session table is away" in told.steps


async def test_a_home_that_the_table_has_not_heard_of_yet_is_part_of_what_it_says() -> None:
    world = World(gateways=2)
    home = await world.ask("s")
    world.set_replica(home.replica, phase=ReplicaState.DRAINING)
    on_its_way = await world.start("s", 1)
    assert on_its_way.outcome is Outcome.NEW, "nobody has told the table of a home yet"
    assert await check(world, "s") is Outcome.MOVED
