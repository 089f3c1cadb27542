"""Slots, incarnations and silence, by a hand-turned clock."""

from __future__ import annotations

from cosmos3_serve.reasoner.fleet.member import GatewayStatus, HeldMedia, Load, Service
from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef, ReplicaState
from cosmos3_serve.reasoner.fleet.roster import Roster

WALL = 1_800_000_000.0


def service(port: int = 1) -> Service:
    return Service(f"http://127.0.0.1:{port}", 8, HeldMedia(1000, 10))


def seat(roster: Roster, now: float = 0.0, port: int = 1, claim: ReplicaRef | None = None) -> ReplicaRef:
    ref = roster.register(service(port), now, WALL + now, claim)
    assert ref is not None
    return ref


def grow(roster: Roster, now: float, port: int, claim: ReplicaRef | None = None) -> ReplicaRef:
    """One more where no slot is vacant: everybody is heard between its two questions."""
    assert roster.register(service(port), now, WALL + now, claim) is None
    for member in roster.view(now).members:
        roster.beat(member.ref, Load(), now + 0.1)
    return seat(roster, now + 0.2, port, claim)


def pass_time(roster: Roster, start: int, end: int) -> None:
    for now in range(start, end + 1):
        roster.sweep(now)


def phases(roster: Roster, now: float = 0.0) -> dict[str, ReplicaState]:
    return {member.replica_id: member.phase for member in roster.view(now).members}


def test_replicas_take_slots_in_order_and_each_is_ready() -> None:
    roster = Roster("g", 2)
    assert [seat(roster, port=port).id for port in (1, 2)] == ["replica-0", "replica-1"]
    assert set(phases(roster).values()) == {ReplicaState.READY}
    assert roster.view(0).members[1].url == "http://127.0.0.1:2"


def test_a_replacement_takes_the_slot_of_the_dead_with_a_higher_incarnation() -> None:
    roster = Roster("g", 2)
    first, _ = seat(roster, port=1), seat(roster, port=2)
    roster.leave(first, 1.0)
    vacant = roster.view(1.0).members[0]
    assert (vacant.phase, vacant.url) == (ReplicaState.STARTING, "")
    again = seat(roster, 2.0, port=3)
    assert again.id == first.id
    assert again.incarnation > first.incarnation


def test_a_replacement_that_is_up_before_the_silence_is_long_enough_waits_for_the_slot() -> None:
    """Ray starts another process in four seconds; the slot of the killed one is vacant after eight."""
    roster = Roster("g", 2, lost_after_s=8)
    killed, other = seat(roster, port=1), seat(roster, port=2)
    for now in range(1, 8):
        roster.sweep(now)
        roster.beat(other, Load(), now)
        if now >= 4:
            assert roster.register(service(3), now, WALL + now) is None
    roster.sweep(8)
    again = seat(roster, 8, port=3)
    assert again.id == killed.id and again.incarnation > killed.incarnation


def test_one_more_than_wanted_gets_a_slot_once_all_others_were_heard_again() -> None:
    roster = Roster("g", 2, lost_after_s=8)
    members = [seat(roster, port=port) for port in (1, 2)]
    for ref in members:
        roster.beat(ref, Load(), 5)
    assert roster.register(service(3), 5.5, WALL) is None
    roster.beat(members[0], Load(), 6)
    assert roster.register(service(3), 6.2, WALL) is None
    roster.beat(members[1], Load(), 6.5)
    assert seat(roster, 6.8, port=3).id == "replica-2"


def test_newcomers_are_bounded_and_forgotten() -> None:
    roster = Roster("g", 1, lost_after_s=8)
    seat(roster)
    for port in range(2, 1002):
        assert roster.register(service(port), 1.0, WALL) is None
    assert len(roster._newcomers) == 256
    assert roster.register(service(2000), 30.0, WALL) is None
    assert len(roster._newcomers) == 1


def test_two_lives_in_one_millisecond_still_differ() -> None:
    roster = Roster("g", 1)
    first = seat(roster)
    roster.leave(first, 0.0)
    assert seat(roster).incarnation == first.incarnation + 1


def test_the_silent_are_lost_and_those_that_beat_are_not() -> None:
    roster = Roster("g", 2, lost_after_s=8)
    quiet, lively = seat(roster, port=1), seat(roster, port=2)
    for now in range(1, 10):
        assert roster.beat(lively, Load(1, 2), now)
        roster.sweep(now)
    assert phases(roster) == {quiet.id: ReplicaState.STARTING, lively.id: ReplicaState.READY}
    assert roster.view(9).loads == {lively: Load(1, 2)}
    assert not roster.beat(quiet, Load(), 10), "it must register again"


def test_one_that_was_only_slow_returns_as_itself() -> None:
    roster = Roster("g", 1, lost_after_s=8)
    ref = seat(roster)
    pass_time(roster, 0, 8)
    assert phases(roster) == {ref.id: ReplicaState.STARTING}
    assert seat(roster, 9.0, claim=ref) == ref, "its caches are as they were"
    assert phases(roster) == {ref.id: ReplicaState.READY}


def test_one_whose_slot_was_given_away_gets_another() -> None:
    roster = Roster("g", 1, lost_after_s=8)
    old = seat(roster, port=1)
    pass_time(roster, 0, 8)
    new = seat(roster, 9.0, port=2)
    late = grow(roster, 10.0, port=1, claim=old)
    assert new.id == old.id
    assert late.id == "replica-1"


def test_a_slot_beyond_the_wanted_is_forgotten_and_a_wanted_one_is_kept() -> None:
    roster = Roster("g", 1, lost_after_s=8, forget_after_s=100)
    seat(roster)
    extra = grow(roster, 0.0, port=2)
    roster.leave(extra, 0.0)
    roster.leave(ReplicaRef("replica-0", roster.view(0).members[0].incarnation), 0.0)
    pass_time(roster, 0, 99)
    assert len(roster.view(99).members) == 2
    pass_time(roster, 100, 300)
    assert len(roster.view(300).members) == 1


def test_a_roster_that_could_not_listen_calls_nobody_silent() -> None:
    roster = Roster("g", 1, lost_after_s=8)
    ref = seat(roster)
    roster.sweep(1.0)
    roster.sweep(60.0)
    assert phases(roster) == {ref.id: ReplicaState.READY}
    pass_time(roster, 61, 66)
    assert phases(roster) == {ref.id: ReplicaState.READY}
    roster.sweep(67.0)
    assert phases(roster) == {ref.id: ReplicaState.STARTING}, "eight seconds in which it could have been heard"


def test_a_recovering_roster_seats_those_that_return_before_strangers() -> None:
    roster = Roster("g2", 2, recover_until=5.0)
    assert not roster.view(0).settled
    assert roster.register(service(9), 1.0, WALL) is None, "a stranger waits"
    back = ReplicaRef("replica-0", 77)
    assert seat(roster, 1.0, claim=back) == back
    assert not roster.view(1).settled
    other = ReplicaRef("replica-1", 78)
    assert seat(roster, 2.0, port=2, claim=other) == other
    assert roster.view(2).settled, "all are back"
    assert grow(roster, 3.0, port=9).id == "replica-2"


def test_a_recovering_roster_settles_by_time_too() -> None:
    roster = Roster("g2", 2, recover_until=5.0)
    assert roster.view(5.0).settled
    assert seat(roster, 5.0).id == "replica-0"


def test_draining_and_ending() -> None:
    roster = Roster("g", 2)
    ref, _ = seat(roster, port=1), seat(roster, port=2)
    roster.drain(ref)
    assert phases(roster)[ref.id] is ReplicaState.DRAINING
    roster.end()
    assert roster.view(0).draining


def test_every_change_has_a_version_and_a_beat_has_none() -> None:
    roster = Roster("g", 1)
    before = roster.version
    ref = seat(roster)
    joined = roster.version
    roster.beat(ref, Load(3, 4), 1.0)
    assert before < joined == roster.version
    roster.leave(ref, 2.0)
    roster.leave(ref, 2.0)
    assert roster.version == joined + 1


def test_events_of_an_earlier_life_change_nothing() -> None:
    roster = Roster("g", 1)
    old = seat(roster)
    roster.leave(old, 0.0)
    new = seat(roster, 1.0)
    roster.leave(old, 2.0)
    roster.drain(old)
    assert not roster.beat(old, Load(), 2.0)
    assert roster.view(2).members[0].ref == new
    assert phases(roster) == {new.id: ReplicaState.READY}


def test_gateways_are_remembered_while_they_speak() -> None:
    roster = Roster("g", 1)
    roster.hear(GatewayStatus("a", port=1), 0.0)
    roster.hear(GatewayStatus("b", port=2), 10.0)
    assert {s.gateway for s in roster.gateways(14.0)} == {"a", "b"}
    assert {s.gateway for s in roster.gateways(16.0)} == {"b"}
    roster.gateway_left("b")
    roster.gateway_left("never-heard")
    assert roster.gateways(16.0) == []
    for number in range(1000):
        roster.hear(GatewayStatus(str(number)), 20.0)
    assert len(roster.gateways(20.0)) <= 256


def test_a_failure_to_start_is_told_until_a_replica_serves() -> None:
    roster = Roster("g", 1)
    roster.failed("x", {"code": "vllm_missing"})
    assert roster.failures == {"x": {"code": "vllm_missing"}}
    seat(roster)
    assert roster.failures == {}


def join(roster: Roster, others: list[ReplicaRef], now: float, port: int) -> ReplicaRef:
    """One more asks for a place while all others live: it has to be sure that none of them is the one it replaces."""
    assert roster.register(service(port), now, WALL + now) is None
    for ref in others:
        assert roster.beat(ref, Load(), now + 0.1)
    return seat(roster, now + 0.2, port=port)


def test_a_fresh_replica_takes_a_place_of_its_own_and_the_old_places_are_forgotten_when_the_fleet_is_whole() -> None:
    roster = Roster("g", 2)
    old = [seat(roster, port=1), seat(roster, port=2)]
    assert roster.renew() == tuple(old)
    assert [member.leaving for member in roster.view(0).members] == [True, True]
    fresh = join(roster, old, 1.0, port=3)
    assert fresh.id == "replica-2"
    roster.drain(old[0])
    assert roster.view(1.0).members[0].leaving
    roster.leave(old[0], 2.0)
    roster.sweep(2.0)
    assert phases(roster, 2.0).keys() == {"replica-1", "replica-2"}, "nobody waits for a place that nobody takes"
    other = join(roster, [old[1], fresh], 3.0, port=4)
    roster.leave(old[1], 4.0)
    roster.sweep(4.0)
    assert phases(roster, 4.0).keys() == {fresh.id, other.id}
    assert not any(member.leaving for member in roster.view(4.0).members)


def test_names_do_not_grow_with_renewals() -> None:
    roster = Roster("g", 2)
    here = [seat(roster, port=1), seat(roster, port=2)]
    for now in range(1, 50):
        roster.renew()
        for number, old in enumerate(here):
            here[number] = join(roster, here, now + number / 2, port=1000 + 2 * now + number)
            roster.leave(old, float(now))
            roster.sweep(float(now))
    assert {ref.id for ref in here} <= {"replica-0", "replica-1", "replica-2", "replica-3"}
    assert len(roster.view(50.0).members) == 2


def test_after_a_renewal_a_dead_replica_is_replaced_in_its_own_place() -> None:
    roster = Roster("g", 2)
    old = [seat(roster, port=1), seat(roster, port=2)]
    fresh = [join(roster, old, 1.0, port=3)]
    fresh.append(join(roster, [*old, *fresh], 1.5, port=4))
    for ref in old:
        roster.leave(ref, 2.0)
    roster.sweep(2.0)
    roster.leave(fresh[0], 3.0)
    roster.sweep(3.0)
    assert phases(roster, 3.0)[fresh[0].id] is ReplicaState.STARTING
    assert seat(roster, 4.0, port=5).id == fresh[0].id


def test_a_fleet_that_shrinks_keeps_no_place_for_those_who_went() -> None:
    roster = Roster("g", 3)
    refs = [seat(roster, port=port) for port in (1, 2, 3)]
    roster.want(1)
    for ref in refs[1:]:
        roster.leave(ref, 1.0)
    roster.sweep(2.0)
    assert phases(roster) == {"replica-0": ReplicaState.READY}
    roster.want(0)
    roster.leave(refs[0], 3.0)
    roster.sweep(3.5)
    assert phases(roster) == {}
    roster.want(1)
    assert seat(roster, 4.0, port=4).id == "replica-0"


def test_the_demand_is_what_all_gateways_wait_for() -> None:
    roster = Roster("g", 2)
    assert (roster.demand(0.0).seqs, roster.demand(0.0).settled) == (0, False), "nobody has told anything"
    seat(roster)
    roster.hear(GatewayStatus("a", answers=5), 0.0)
    roster.hear(GatewayStatus("b", answers=7, asked_s=6.0), 1.0)
    found = roster.demand(2.0)
    assert (found.answers, found.asked, found.seqs, found.wanted, found.settled) == (12, True, 8, 2, True)
    assert not roster.demand(6.0).asked, "ten seconds after the question"
    roster.hear(GatewayStatus("b", answers=7), 14.0)
    assert roster.demand(15.5).answers == 7, "one that is silent counts for nothing"
    again = Roster("g", 2, recover_until=5.0)
    again.hear(GatewayStatus("a"), 4.0)
    assert not again.demand(4.9).settled and again.demand(5.0).settled


def test_replicas_that_cannot_start_are_told_to_gateways() -> None:
    roster = Roster("g", 0)
    before = roster.version
    roster.failed("one", {"code": "model_refused"})
    assert roster.view(0.0).failing and roster.version > before
    roster.want(1)
    assert roster.view(0.0).failing
    roster.want(0)
    assert not roster.view(0.0).failing, "a fleet that gave up sleeps, and can be woken"
    roster.failed("two", {"code": "model_refused"})
    seat(roster)
    assert not roster.view(0.0).failing


def test_that_an_engine_computes_nothing_is_news_and_so_is_its_end() -> None:
    roster = Roster("g", 1)
    ref = seat(roster)
    for quiet, news in ((False, 1), (False, 0), (True, 1), (True, 0), (False, 1)):
        before = roster.version
        roster.beat(ref, Load(1, 0, quiet), 1.0)
        assert roster.version - before == news
        assert roster.view(1.0).members[0].spec.quiet is quiet
