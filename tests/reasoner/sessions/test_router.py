"""The router: profiles, the one second choice, suspect media, refusals with their codes."""

import asyncio
from collections import Counter

import pytest
from support.router_fleet import World, key

from cosmos3_serve.errors import Cosmos3Error, NotReady, QueueFull, ValidationFailed
from cosmos3_serve.reasoner.fleet.replicas import ReplicaState
from cosmos3_serve.reasoner.sessions.policy import Mode, Outcome, Profile
from cosmos3_serve.reasoner.sessions.router import MAX_ATTEMPTS, Decision, Refused, Stage
from cosmos3_serve.reasoner.sessions.suspects import Aboard

S = ReplicaState


def idle(world: World) -> bool:
    """No request is counted anywhere."""
    return all(
        not r.leases._live and not r.suspects._aboard and all(rec.in_flight == 0 for rec in r.health._records.values())
        for r in world.routers
    )


async def test_round_robin_ignores_sessions() -> None:
    world = World(profile=Profile.ROUND_ROBIN)
    decisions = [await world.ask("s") for _ in range(8)]
    assert "".join(d.replica[1] for d in decisions) == "01230123"
    assert {d.outcome for d in decisions} == {Outcome.NONE}
    assert world.host.acquired == 0
    assert len(world.router.leases) == 0


async def test_requests_without_a_session_go_round_and_disturb_no_session() -> None:
    world = World()
    seen = []
    for i in range(4):
        seen.append((await world.ask(None)).replica)
        assert (await world.ask(f"s{i}")).replica == f"r{i}"
    assert seen == ["r0", "r1", "r2", "r3"]


async def test_a_killed_home_costs_one_retry_and_moves() -> None:
    world = World()
    first = await world.ask("s")
    second = await world.start("s")
    assert (second.replica, second.retry_allowed) == (first.replica, True)
    assert world.router.on_died(second, world.now).retry
    third = await world.ask("s", after=second)
    assert (third.outcome, third.attempt, third.retry_allowed) == (Outcome.MOVED, 2, False)
    assert third.replica != first.replica
    assert world.router.counters.retries == 1
    assert (await world.ask("s")).replica == third.replica
    assert idle(world)


async def test_every_request_that_a_death_took_along_moves_to_one_new_home() -> None:
    world = World()
    await world.ask("s")
    lost = [await world.start("s") for _ in range(6)]
    for decision in lost:
        assert world.router.on_died(decision, world.now).retry
    again = await asyncio.gather(*(world.ask("s", after=d) for d in lost))
    assert len({d.replica for d in again}) == 1
    assert {d.outcome for d in again} == {Outcome.MOVED}


async def test_a_retry_that_finds_its_session_already_moved_says_so() -> None:
    world = World()
    await world.ask("s")
    lost = [await world.start("s") for _ in range(2)]
    for decision in lost:
        world.router.on_died(decision, world.now)
    first = await world.ask("s", after=lost[0])
    second = await world.ask("s", after=lost[1])  # after the first was accepted: a lease again
    assert (second.outcome, second.ref) == (Outcome.MOVED, first.ref)


async def test_a_new_session_whose_replica_dies_is_still_new() -> None:
    world = World()
    lost = await world.start("s")
    assert world.router.on_died(lost, world.now).retry
    again = await world.ask("s", after=lost)
    assert again.outcome is Outcome.NEW
    assert again.replica != lost.replica


async def test_the_second_death_is_an_answer_not_a_third_attempt() -> None:
    world = World()
    one = await world.start("s")
    assert world.router.on_died(one, world.now).retry
    two = await world.start("s", after=one)
    end = world.router.on_died(two, world.now)
    assert not end.retry
    assert isinstance(end.error, NotReady)
    assert end.error.stable_code == "replica_lost"
    assert end.error.retry_after_s
    with pytest.raises(ValueError, match="not offered"):
        await world.start("s", after=two)
    assert idle(world)


@pytest.mark.parametrize("first", list(Refused))
@pytest.mark.parametrize("second", list(Refused))
async def test_no_request_reaches_more_than_two_replicas(first: Refused, second: Refused) -> None:
    world = World()
    decision, reached = await world.start("s"), 1
    for why in (first, second, first, second):
        end = world.router.on_refused(decision, world.now, why)
        if not end.retry:
            break
        decision, reached = await world.start("s", after=decision), reached + 1
    assert reached <= MAX_ATTEMPTS
    assert idle(world)
    await world.converge()
    assert len(world.host.table) == 0, "nobody accepted, nothing is bound"


async def test_after_the_first_token_there_is_no_way_back() -> None:
    world = World()
    decision = await world.start("s")
    world.router.on_first_token(decision, world.now)
    end = world.router.on_died(decision, world.now)
    assert not end.retry
    assert end.error is not None
    assert end.error.stable_code == "replica_lost"
    assert idle(world)


async def test_accepted_but_silent_is_still_before_the_first_token() -> None:
    world = World()
    decision = await world.start("s")
    world.router.on_accepted(decision, world.now)
    assert world.router.on_died(decision, world.now).retry
    assert (await world.ask("s", after=decision)).outcome is Outcome.MOVED


async def test_unanswered_media_is_not_carried_to_a_second_replica() -> None:
    world = World()
    decision = await world.start("s", media=["m"])
    assert not decision.retry_allowed
    end = world.router.on_died(decision, world.now)
    assert not end.retry
    assert isinstance(end.error, NotReady)
    assert (end.error.status, end.error.stable_code) == (503, "replica_lost_on_media")
    assert end.error.retry_after_s
    with pytest.raises(ValueError):
        await world.start("s", after=decision)


async def test_a_text_that_no_replica_has_answered_is_not_carried_to_a_second_replica() -> None:
    world = World(gateways=2)
    decision = await world.start("s", digest="killer")
    assert not decision.retry_allowed
    end = world.router.on_died(decision, world.now)
    assert not end.retry
    assert isinstance(end.error, NotReady)
    assert (end.error.status, end.error.stable_code) == (503, "replica_lost_on_request")
    world.engine_died(decision.ref)
    await world.flush()
    await world.flush()
    for gateway in (0, 1):
        with pytest.raises(NotReady) as held:
            await world.start("t", gateway, digest="killer")
        assert held.value.stable_code == "request_suspected"
        assert 0 < (held.value.retry_after_s or 0) <= 5
        assert await world.ask("t", gateway, digest="another")
    world.tick(5)
    await world.converge()
    again = await world.start("s", 1, digest="killer")
    world.routers[1].on_died(again, world.now)
    world.engine_died(again.ref)
    await world.converge()
    world.tick(5)
    await world.converge()
    for gateway in (0, 1):
        with pytest.raises(ValidationFailed) as refused:
            await world.start("t", gateway, digest="killer")
        assert refused.value.stable_code == "request_quarantined"
    assert idle(world)


async def test_a_suspect_is_not_retried_although_its_media_is_proven() -> None:
    world = World()
    await world.ask("s", media=["m"])
    lost = [await world.start("s", digest=name, media=["m"]) for name in ("one", "two")]
    for decision in lost:
        assert world.router.on_died(decision, world.now).retry, "both: nothing spoke against them before"
        assert await world.start("s", digest=decision.request.digest, media=["m"], after=decision)
    world.tick(5)
    again = await world.start("s", digest="one", media=["m"])
    assert (again.suspect, again.retry_allowed) == (True, False)
    assert not world.router.on_died(again, world.now).retry


@pytest.mark.parametrize("suspect", [False, True])
async def test_what_a_drained_replica_cut_is_sent_again_unless_it_is_a_suspect(suspect: bool) -> None:
    world = World()
    if suspect:
        world.router.on_died(await world.start("s", digest="new"), world.now)
        world.tick(5)
    decision = await world.start("s", digest="new")
    for phase in (ReplicaState.DRAINING, ReplicaState.STARTING):  # it drains, and leaves
        world.set_replica(decision.replica, decision.incarnation, phase)
    assert world.router.on_died(decision, world.now).retry is not suspect


async def test_an_answer_that_broke_off_proves_no_request() -> None:
    world = World()
    decision = await world.start("s", digest="new", media=["m"])
    world.router.on_first_token(decision, world.now)
    world.router.on_died(decision, world.now)
    assert world.router.suspects.proven("m")
    assert not world.router.suspects.proven("new")
    assert world.router.suspects.held("new", world.now)


async def test_proven_media_is_retried_also_by_a_gateway_that_only_heard_of_it() -> None:
    world = World(gateways=2)
    await world.ask("s", 0, media=["m"])
    await world.converge()
    decision = await world.start("s", 1, media=["m"])
    assert decision.retry_allowed
    assert world.routers[1].on_died(decision, world.now).retry


async def test_a_request_that_was_never_delivered_is_retried_with_any_media() -> None:
    world = World()
    decision = await world.start("s", media=["m"])
    assert world.router.on_refused(decision, world.now, Refused.UNREACHABLE).retry
    assert (await world.ask("s", media=["m"], after=decision)).replica != decision.replica
    assert not world.router.suspects.suspect("m")


async def test_a_suspect_is_quarantined_after_its_second_death_alone_on_every_gateway() -> None:
    world = World(gateways=2, replicas=6)
    for _ in range(2):
        decision = await world.start("s", 0, media=["bad"])
        assert world.router.on_died(decision, world.now).error
        world.engine_died(decision.ref)
        await world.converge()
        world.tick(10)
        await world.converge()
    for router in world.routers:
        with pytest.raises(ValidationFailed) as refused:
            await router.choose(key("s"), world.now, request=Aboard("q", ("bad",)))
        assert refused.value.stable_code == "media_quarantined"
        await router.choose(key("t"), world.now, request=Aboard("q", ("good",)))


async def test_a_victim_beside_a_suspect_on_another_gateway_is_not_quarantined() -> None:
    world = World(gateways=2, replicas=1)
    for life in range(1, 6):
        world.set_replica("r0", life)
        bad, good = await world.start("b", 0, media=["bad"]), await world.start("g", 1, media=["good"])
        world.routers[0].on_died(bad, world.now)
        world.routers[1].on_died(good, world.now)
        world.engine_died(bad.ref)
        world.tick(70)
        await world.converge()
        world.tick(70)
        await world.converge()
    world.set_replica("r0", 9)
    assert await world.ask("g", 1, media=["good"])


async def test_fifty_client_errors_leave_no_trace_on_health_or_sessions() -> None:
    world = World()
    for i in range(50):
        decision = await world.start(f"s{i}")
        assert world.router.on_refused(decision, world.now, Refused.CLIENT_ERROR).error is None
    assert {v.state for v in world.router.health.fleet(world.now).replicas.values()} == {S.READY}
    await world.flush()
    assert len(world.host.table) == 0
    assert world.host.table.stats().live == {}


async def test_a_client_error_on_a_known_session_keeps_it() -> None:
    world = World()
    await world.ask("s")
    bad = await world.start("s")
    world.router.on_refused(bad, world.now, Refused.CLIENT_ERROR)
    await world.converge()
    assert (await world.ask("s")).outcome is Outcome.HIT


async def test_a_full_home_spills_softly_and_refuses_hard() -> None:
    for mode in Mode:
        world = World(mode=mode, max_num_seqs=4)
        home = await world.ask("s")
        await world.flush()
        world.fill(home.replica, 4)
        if mode is Mode.SOFT:
            spilled = await world.ask("s")
            assert spilled.outcome is Outcome.SPILLED
            assert spilled.replica != home.replica
        else:
            with pytest.raises(NotReady) as busy:
                await world.start("s")
            assert busy.value.stable_code == "session_home_busy"
            assert busy.value.retry_after_s
        world.fill(home.replica, -4)
        assert (await world.ask("s")).replica == home.replica
        assert idle(world)


async def test_a_home_that_says_429_spills_the_second_attempt() -> None:
    world = World()
    home = await world.ask("s")
    decision = await world.start("s")
    assert world.router.on_refused(decision, world.now, Refused.SATURATED).retry
    again = await world.ask("s", after=decision)
    assert again.outcome is Outcome.SPILLED
    assert again.replica != home.replica
    world.tick(1)
    assert (await world.ask("s")).replica == home.replica


async def test_a_refusal_ends_and_the_replica_is_eligible_again_for_the_request_it_refused() -> None:
    for name in ("s", None):
        world = World(replicas=1)
        decision = await world.start(name)
        assert world.router.on_refused(decision, world.now, Refused.SATURATED, retry_after_s=2).retry
        assert not world.router.has_room(world.now, after=decision)
        with pytest.raises(QueueFull):
            await world.start(name, after=decision)
        world.tick(2)
        assert world.router.has_room(world.now, after=decision)
        assert (await world.ask(name, after=decision)).ref == decision.ref
        assert idle(world)


async def test_gateways_count_what_the_others_have_in_flight() -> None:
    world = World(gateways=2, replicas=1, max_num_seqs=8)
    wide = await world.start("a", 0, n=6)
    plain = await world.start("b", 1)
    await world.flush()
    await world.flush()
    assert [r.health.load(wide.ref, world.now) for r in world.routers] == [7, 7]
    await world.start("c", 1)
    with pytest.raises(QueueFull):
        await world.start("d", 1)
    world.router.on_finished(wide, world.now)
    await world.flush()
    assert await world.start("d", 1)
    world.routers[1].on_finished(plain, world.now)
    await world.start("e", 0)
    await world.flush(0)
    await world.flush(1)
    assert world.routers[1].health.load(wide.ref, world.now) == 3
    world.tick(6)
    await world.flush(1)
    assert world.routers[1].health.load(wide.ref, world.now) == 2, "what a silent gateway reported ages"


async def test_a_hot_session_spills_over_the_others_evenly() -> None:
    world = World(max_num_seqs=6)
    await world.ask("s")
    parallel = [await world.start("s") for _ in range(24)]
    assert Counter(d.replica for d in parallel) == {"r0": 6, "r1": 6, "r2": 6, "r3": 6}
    with pytest.raises(QueueFull) as full:
        await world.start("s")
    assert (full.value.status, full.value.stable_code) == (429, "fleet_saturated")
    assert full.value.retry_after_s


@pytest.mark.parametrize("phase", [S.DRAINING, S.STARTING])
async def test_hard_mode_refuses_until_the_home_serves_or_leaves(phase: ReplicaState) -> None:
    world = World(mode=Mode.HARD)
    home = await world.ask("s")
    world.set_replica(home.replica, phase=phase)
    for _ in range(3):
        with pytest.raises(NotReady) as lost:
            await world.start("s")
        assert (lost.value.status, lost.value.stable_code) == (503, "session_home_lost")
        assert lost.value.retry_after_s
    assert (await world.ask("new")).outcome is Outcome.NEW
    world.set_replica(home.replica)
    assert (await world.ask("s")).outcome is Outcome.HIT
    world.remove(home.replica)
    assert (await world.ask("s")).outcome is Outcome.MOVED
    assert idle(world)


async def test_a_replaced_replica_serves_its_session_within_one_request() -> None:
    for mode in Mode:
        world = World(mode=mode)
        home = await world.ask("s")
        world.set_replica(home.replica, incarnation=2)
        again = await world.ask("s")
        assert (again.replica, again.incarnation, again.outcome) == (home.replica, 2, Outcome.MOVED)
        assert (await world.ask("s")).outcome is Outcome.HIT


async def test_an_empty_fleet_says_so() -> None:
    world = World(replicas=0)
    for name in ("s", None):
        with pytest.raises(NotReady) as none:
            await world.start(name)
        assert none.value.stable_code == "no_replica"
    assert world.router.counters.failures == {"no_replica": 2}
    assert idle(world)


async def test_an_unresponsive_replica_does_not_hold_up_the_others() -> None:
    world = World(max_num_seqs=2)
    stuck: list[Decision] = []
    for i in range(40):
        decision = await world.start(f"s{i}")
        if decision.replica == "r0":
            stuck.append(decision)  # accepts and never answers
        else:
            world.router.on_first_token(decision, world.now)
            world.router.on_finished(decision, world.now)
    assert len(stuck) == 2, "only as many as it can hold"
    for decision in stuck:
        end = world.router.on_refused(decision, world.now, Refused.TIMED_OUT)
        assert not end.retry, "it may still be working on it"
        assert isinstance(end.error, Cosmos3Error)
        assert end.error.stable_code == "replica_timeout"
    assert world.router.health.state(stuck[0].ref, world.now) is S.DEAD


async def test_reports_are_idempotent() -> None:
    world = World()
    decision = await world.start("s")
    for _ in range(3):
        world.router.on_accepted(decision, world.now)
        world.router.on_first_token(decision, world.now)
    for _ in range(3):
        world.router.on_finished(decision, world.now)
        world.router.on_died(decision, world.now)
        world.router.on_refused(decision, world.now, Refused.TIMED_OUT)
    assert decision.stage is Stage.OVER
    assert idle(world)
    assert world.router.counters.rows()["r0"]["new"] == 1
    assert world.router.health.state(decision.ref, world.now) is S.READY


async def test_a_client_that_leaves_before_the_answer_leaves_no_binding() -> None:
    world = World()
    decision = await world.start("s", media=["m"])
    world.router.on_finished(decision, world.now)
    await world.flush()
    assert len(world.host.table) == 0
    assert idle(world)
    assert not world.router.suspects.proven("m")
