"""A gateway's copy: local lookups, batched touches, a table that is away, lossy, or new."""

import asyncio

import pytest
from support.router_fleet import World

from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef
from cosmos3_serve.reasoner.fleet.updates import UpdateLog
from cosmos3_serve.reasoner.sessions.messages import Flush, FlushReply, Peek, TableAway, Touch
from cosmos3_serve.reasoner.sessions.policy import Outcome


async def test_known_sessions_never_ask_the_table() -> None:
    world = World()
    await world.ask("s")
    assert world.host.acquired == 1
    for _ in range(50):
        world.tick(5)
        assert (await world.ask("s")).outcome is Outcome.HIT
        await world.flush()
    assert world.host.acquired == 1


async def test_near_its_end_a_session_is_asked_for() -> None:
    world = World()
    await world.ask("s")
    await world.flush()
    world.tick(300 - world.rules.margin_s - 0.01)
    assert world.router.leases.lookup("s", world.now)
    world.tick(0.02)
    assert world.router.leases.lookup("s", world.now) is None
    assert world.router.leases.lookup("s", world.now, sure=False)
    assert (await world.ask("s")).outcome is Outcome.HIT
    assert world.host.acquired == 2


async def test_another_gateway_keeps_the_session_alive() -> None:
    world = World(gateways=2)
    await world.ask("s", 0)
    for _ in range(5):
        world.tick(240)
        await world.ask("s", 1)
        await world.flush()
    world.tick(240)
    assert (await world.ask("s", 0)).outcome is Outcome.HIT


async def test_a_session_with_a_request_in_flight_never_expires() -> None:
    world = World(gateways=2)
    decision = await world.start("s", 0)
    world.router.on_accepted(decision, world.now)
    for _ in range(40):
        world.tick(29)
        await world.flush()
    assert (await world.ask("s", 1)).outcome is Outcome.HIT
    world.router.on_finished(decision, world.now)
    world.tick(299)
    await world.flush()
    assert (await world.ask("s", 0)).outcome is Outcome.HIT


async def test_batched_touches_do_not_shorten_the_ttl() -> None:
    """A hit just before the margin, told as late as allowed: the other gateway still finds the session."""
    world = World(gateways=2)
    first = await world.ask("s", 0)
    await world.flush()
    world.tick(300 - world.rules.margin_s - 0.01)
    again = await world.start("s", 0)  # from the lease; the table has not heard of it
    assert world.host.acquired == 1
    world.router.on_accepted(again, world.now)
    world.tick(world.rules.flush_interval_s)
    await world.flush(0)
    world.tick(200)
    await world.flush(0)
    other = await world.ask("s", 1)
    assert (other.outcome, other.replica) == (Outcome.HIT, first.replica)


async def test_what_one_gateway_binds_the_other_learns() -> None:
    world = World(gateways=2)
    for i in range(50):
        await world.ask(f"s{i}", i % 2)
    await world.converge()
    assert world.homes(0) == world.homes(1)
    assert len(world.homes(0)) == 50


async def test_a_flush_is_due_at_its_interval_and_at_once_after_a_refusal() -> None:
    world = World()
    leases = world.router.leases
    assert leases.due(world.now), "the first one makes the gateway known"
    await world.flush()
    assert not leases.due(world.now)
    world.tick(world.rules.flush_interval_s)
    assert leases.due(world.now), "a heartbeat, even with nothing to say"
    await world.flush()
    leases.on_refused("s", ReplicaRef("r0", 1))
    assert leases.due(world.now)


async def test_a_lost_answer_is_told_again() -> None:
    world = World()
    await world.ask("s")
    world.host.lose_replies = 1
    assert not await world.router.leases.flush(world.now)
    assert world.router.leases.away(world.now)
    assert not world.router.leases.due(world.now)
    world.tick(1)
    assert await world.router.leases.flush(world.now)
    assert world.host.table.stats().live == {}
    assert len(world.host.table) == 1


async def test_a_table_that_is_away_is_asked_by_reports_only_until_one_is_answered() -> None:
    world = World()
    world.host.away = True
    for i in range(20):
        await world.ask(f"s{i}")
    world.host.away = False
    for _ in range(3):
        world.tick(60)
        await world.ask("next")
    assert world.host.acquired == 0
    assert world.router.leases.due(world.now)
    await world.flush()
    await world.ask("after")
    assert world.host.acquired == 1


async def test_a_table_that_hangs_holds_one_call_up_and_no_other() -> None:
    """The pause runs from the end of a call that hung: it is longer than the pause."""
    world = World()
    asked = 0

    async def hangs(message: object) -> None:
        nonlocal asked
        asked += 1
        world.tick(1.0)
        raise TableAway

    world.host.acquire = world.host.flush = hangs  # type: ignore[assignment]
    begun = world.now
    for i in range(40):
        await world.ask(f"s{i}")
    assert world.now - begun == 1.0
    gaps = []
    for _ in range(8):
        waited = world.now
        while not world.router.leases.due(world.now):
            world.tick(0.1)
        gaps.append(world.now - waited)
        await world.flush()
    assert gaps[:3] == pytest.approx([0.5, 1.0, 2.0], abs=0.11)
    assert max(gaps) <= 2.2, "bounded"
    assert asked == 9


async def test_while_a_report_takes_long_no_session_waits_for_the_table() -> None:
    world = World()
    gate, flush = asyncio.Event(), world.host.flush

    async def slow(message: Flush) -> FlushReply:
        await gate.wait()
        return await flush(message)

    world.host.flush = slow  # type: ignore[method-assign]
    report = asyncio.create_task(world.flush())
    await asyncio.sleep(0)
    await world.ask("in time")
    world.tick(0.4)
    await world.ask("later")
    assert world.host.acquired == 1
    gate.set()
    await report
    await world.ask("after")
    assert world.host.acquired == 2


async def test_one_flush_at_a_time() -> None:
    world = World()
    one, two = await asyncio.gather(world.router.leases.flush(world.now), world.router.leases.flush(world.now))
    assert (one, two) == (True, False)


async def test_a_cancelled_first_question_leaves_nothing_behind() -> None:
    world = World()
    task = asyncio.create_task(world.start("s"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.router.leases.live("s") == 0
    await world.converge()
    assert len(world.host.table) == 0


async def test_the_copy_is_bounded_and_keeps_what_is_live_or_untold() -> None:
    world = World(max_sessions=4)
    live = await world.start("live")
    world.router.on_accepted(live, world.now)
    await world.flush()
    for i in range(20):
        await world.ask(f"s{i}")
        await world.flush()
        assert len(world.router.leases) <= 4
    assert world.router.leases.lookup("live", world.now)


async def test_expired_leases_are_dropped() -> None:
    world = World()
    for i in range(20):
        await world.ask(f"s{i}")
    await world.converge()
    assert len(world.router.leases) == 20
    world.tick(301)
    await world.flush()
    assert len(world.router.leases) == 0
    assert len(world.host.table) == 0
    assert world.router.leases.expired == dict.fromkeys(("r0", "r1", "r2", "r3"), 5), "what the table counted"


async def test_news_that_were_lost_are_made_good() -> None:
    world = World(gateways=2)
    world.host.table._updates = UpdateLog(capacity=2)
    home = await world.ask("s", 0)
    await world.converge()
    assert world.homes(1) == {"s": home.ref}
    lost = await world.start("s", 0)
    assert world.routers[0].on_died(lost, world.now).retry
    moved = await world.ask("s", 0, after=lost)
    for i in range(5):  # these push the move out of the log before the other gateway reads it
        await world.ask(f"n{i}", 0)
        await world.flush(0)
    assert world.homes(1) == {"s": home.ref}
    await world.converge()
    assert world.homes(1)["s"] == moved.ref != home.ref


async def test_an_older_home_that_is_heard_of_is_contradicted() -> None:
    """A table that lost and evicted the session may have given it a new home of a lower term."""
    world = World()
    leases, home = world.router.leases, ReplicaRef("r3", 1)
    await world.flush()  # the table's generation is known: nothing is told for that reason any more
    leases._learn(Touch("s", home, 99, 0.0), world.now)
    await world.flush()
    assert len(world.host.table) == 0, "heard, not told"
    leases._learn(Touch("s", ReplicaRef("r1", 1), 0, 0.0), world.now)
    assert world.homes() == {"s": home}
    await world.flush()
    assert world.host.table.peek(Peek("s", world.router.health.fleet(world.now)), world.clock.table).home == home


async def test_a_younger_lease_is_not_overwritten_by_older_news() -> None:
    world = World()
    await world.ask("s")
    await world.flush()
    leases = world.router.leases
    leases.on_accepted("s", ReplicaRef("r3", 1), 99, world.now)
    leases._learn(Touch("s", ReplicaRef("r1", 1), 98, 0.0), world.now)
    assert world.homes() == {"s": ReplicaRef("r3", 1)}
    await world.converge()
    assert world.host.table.stats().sessions == 1
    assert world.homes() == {"s": ReplicaRef("r3", 1)}
