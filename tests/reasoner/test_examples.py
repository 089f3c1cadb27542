"""What the issue lists, word by word."""

import asyncio
from collections import Counter

import pytest
from support.router_fleet import World

from cosmos3_serve.reasoner.fleet.replicas import ReplicaState
from cosmos3_serve.reasoner.sessions.keys import MediaItem, SessionKeys
from cosmos3_serve.reasoner.sessions.policy import Outcome, Profile
from cosmos3_serve.reasoner.sessions.router import Decision


@pytest.mark.parametrize("gateways", [1, 2])
async def test_32_new_sessions_in_the_same_instant_over_4_replicas_give_8_each(gateways: int) -> None:
    world = World(gateways=gateways)
    decisions = await asyncio.gather(*(world.start(f"s{i}", i % gateways) for i in range(32)))
    assert Counter(d.replica for d in decisions) == dict.fromkeys(("r0", "r1", "r2", "r3"), 8)
    assert {d.outcome for d in decisions} == {Outcome.NEW}


@pytest.mark.parametrize("gateways", [1, 2])
async def test_10_concurrent_first_questions_of_one_session_bind_once(gateways: int) -> None:
    world = World(gateways=gateways)
    decisions = await asyncio.gather(*(world.start("s", i % gateways) for i in range(10)))
    assert len({d.ref for d in decisions}) == 1
    assert Counter(d.outcome for d in decisions) == {Outcome.NEW: 1, Outcome.HIT: 9}
    for i, decision in enumerate(decisions):
        world.routers[i % gateways].on_first_token(decision, world.now)
        world.routers[i % gateways].on_finished(decision, world.now)
    await world.converge()
    assert len(world.host.table) == 1
    assert set(world.homes(0).values()) == {decisions[0].ref}


@pytest.mark.parametrize("gateways", [1, 2])
async def test_a_turn_each_08_ttl_stays_and_after_11_ttl_idle_it_is_new(gateways: int) -> None:
    world = World(gateways=gateways)
    home = await world.ask("s")
    for turn in range(12):
        await world.converge()
        world.tick(0.8 * 300 - 6 * world.rules.flush_interval_s)
        decision = await world.ask("s", turn % gateways)
        assert (decision.outcome, decision.replica) == (Outcome.HIT, home.replica)
    await world.converge()
    world.tick(1.1 * 300)
    assert (await world.ask("s")).outcome is Outcome.NEW
    assert world.host.table.stats().expired == {home.replica: 1}


async def test_a_joining_replica_moves_nothing() -> None:
    world = World(gateways=2)
    before = {f"s{i}": (await world.ask(f"s{i}", i % 2)).replica for i in range(40)}
    await world.converge()
    world.set_replica("r9")
    after = {name: await world.ask(name, i % 2) for i, name in enumerate(before)}
    assert {name: d.replica for name, d in after.items()} == before
    assert {d.outcome for d in after.values()} == {Outcome.HIT}
    fresh = Counter([(await world.ask(f"n{i}")).replica for i in range(25)])
    assert fresh["r9"] == 5, "its turn like the others', not a flood"


async def test_two_gateways_agree_on_50_sessions_also_while_the_table_restarts() -> None:
    world = World(gateways=2)
    names = [f"s{i}" for i in range(50)]

    async def both_agree() -> dict[str, str]:
        answers: list[list[Decision]] = [[await world.ask(name, gateway) for name in names] for gateway in (0, 1)]
        assert [d.ref for d in answers[0]] == [d.ref for d in answers[1]]
        return {name: d.replica for name, d in zip(names, answers[0], strict=True)}

    for i, name in enumerate(names[:25]):  # each known to one gateway first
        await world.ask(name, i % 2)
    await world.converge()
    for i, name in enumerate(names[25:]):
        await world.ask(name, i % 2)
    homes = await both_agree()
    await world.converge()

    world.host.away = True
    assert await both_agree() == homes
    fresh = [f"n{i}" for i in range(50)]  # nobody knows these, and nobody can be asked
    away = [[(await world.ask(name, gateway)).ref for name in fresh] for gateway in (0, 1)]
    assert away[0] == away[1]

    world.host.restart()
    world.host.away = False
    assert len(world.host.table) == 0
    assert await both_agree() == homes, "up again and empty: nobody has told it anything yet"
    world.tick(1)
    await world.flush(1)  # one gateway has told, the other not
    assert await both_agree() == homes
    await world.converge()
    assert len(world.host.table) == 100, "rebuilt from the gateways' leases"
    assert world.homes(0) == world.homes(1)
    assert await both_agree() == homes
    assert [(await world.ask(name, 0)).ref for name in fresh] == away[0]


async def test_a_session_known_to_one_gateway_is_found_through_the_other_during_a_restart() -> None:
    world = World(gateways=2)
    homes = {f"s{i}": (await world.ask(f"s{i}", 0)).ref for i in range(50)}
    await world.flush(0, 1)  # the other gateway has learned them with its heartbeat
    world.host.away = True
    assert {name: (await world.ask(name, 1)).ref for name in homes} == homes
    world.host.restart()
    world.host.away = False
    world.tick(1)
    assert {name: (await world.ask(name, 1)).ref for name in homes} == homes


async def test_what_moved_while_the_table_was_away_stays_moved() -> None:
    world = World(gateways=2)
    homes = {f"s{i}": (await world.ask(f"s{i}", i % 2)).replica for i in range(40)}
    await world.converge()
    world.host.away = True
    world.set_replica("r1", phase=ReplicaState.DRAINING)
    moved = {n: [(await world.ask(n, g)).replica for g in (0, 1)] for n, h in homes.items() if h == "r1"}
    assert all(a == b != "r1" for a, b in moved.values())
    world.host.away = False
    world.set_replica("r1")
    world.tick(1)
    await world.converge()
    assert {n: (await world.ask(n, 0)).replica for n in moved} == {n: a for n, (a, _) in moved.items()}


async def test_derived_keys_spread_like_headers_and_round_robin_ignores_both() -> None:
    keys = SessionKeys(b"0123456789abcdef")
    videos = [MediaItem("video", f"{i:064x}") for i in range(12)]
    spread = {}
    for how in ("header", "content"):
        world = World(replicas=2)
        used: dict[int, set[str]] = {}
        for _ in range(8):
            for i, video in enumerate(videos):
                headers = [(b"x-dynamo-session-id", b"%d" % i)] if how == "header" else []
                decision = await world.router.choose(keys.of_request(headers, "t", [video]), world.now)
                world.router.on_first_token(decision, world.now)
                world.router.on_finished(decision, world.now)
                used.setdefault(i, set()).add(decision.replica)
        assert all(len(replicas) == 1 for replicas in used.values()), "each video on one replica"
        spread[how] = Counter(r for replicas in used.values() for r in replicas)
    assert spread["header"] == spread["content"] == {"r0": 6, "r1": 6}
    pure = World(replicas=2, profile=Profile.ROUND_ROBIN)
    both = {(await pure.ask("s")).replica for _ in range(2)}
    assert both == {"r0", "r1"}
