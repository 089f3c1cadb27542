"""What changes a replica's health, and what must not."""

import pytest

from cosmos3_serve.reasoner.fleet.health import HealthBook, HealthRules, Probe, ReplicaSpec
from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef, ReplicaState
from cosmos3_serve.reasoner.sessions.decide import NO_REFUSALS, takers

A, B = ReplicaRef("a", 1), ReplicaRef("b", 1)
A2 = ReplicaRef("a", 2)
S = ReplicaState


def book(max_num_seqs: int = 4) -> HealthBook:
    health = HealthBook()
    health.sync([ReplicaSpec(A, max_num_seqs), ReplicaSpec(B, max_num_seqs)])
    return health


def test_fifty_answers_of_any_status_change_nothing() -> None:
    health = book()
    for _ in range(50):
        health.on_sent(A)
        health.on_answer(A, 0)
        health.on_ended(A)
    assert health.state(A, 0) is S.READY
    assert health.take_probes(0) == []


def test_failures_ask_for_a_canary_and_only_the_canary_decides() -> None:
    health = book()
    for _ in range(50):
        health.on_failed(A, 0)
    assert health.state(A, 0) is S.READY
    assert health.fleet(0).replicas["a"].examined
    assert health.take_probes(0) == [Probe(A, canary=True)]
    assert health.take_probes(0) == []
    health.on_probe(A, True, 0)
    assert health.state(A, 0) is S.READY
    assert not health.fleet(0).replicas["a"].examined
    health.on_failed(A, 0)
    assert health.take_probes(1) == [Probe(A, canary=True)]
    health.on_probe(A, False, 1)
    assert health.state(A, 1) is S.DEAD
    (again,) = health.take_probes(30)
    assert again.canary, "its /health was green all the time"
    health.on_probe(A, True, 31)
    assert health.state(A, 31) is S.READY


def test_a_green_health_endpoint_clears_no_failure_that_came_meanwhile() -> None:
    health = book()
    health.on_unreachable(A, 0)
    assert health.take_probes(1) == [Probe(A, canary=False)]
    health.on_failed(A, 1)
    health.on_probe(A, True, 2)
    assert health.state(A, 2) is S.DEAD
    assert health.take_probes(2) == [Probe(A, canary=True)]


def test_a_canary_that_waits_while_others_are_answered_proves_nothing() -> None:
    health = book()
    for answered, state in ((True, S.READY), (False, S.DEAD)):
        health.on_failed(A, 0)
        assert health.take_probes(100) == [Probe(A, canary=True)]
        if answered:
            health.on_token(A, 110)
        health.on_probe(A, None, 130)
        assert health.state(A, 130) is state
        health.sync([ReplicaSpec(B, 4)])
        health.sync([ReplicaSpec(A, 4), ReplicaSpec(B, 4)])


def test_a_replica_that_is_not_there_is_dead_until_a_probe_says_otherwise() -> None:
    health = book()
    health.on_unreachable(A, 10)
    assert health.state(A, 10) is S.DEAD
    assert health.state(B, 10) is S.READY
    assert health.take_probes(10.4) == []
    assert health.take_probes(10.5) == [Probe(A, canary=False)]
    assert health.take_probes(10.6) == [], "one probe at a time"
    health.on_probe(A, True, 10.7)
    assert health.state(A, 10.7) is S.READY


def test_probes_of_a_dead_replica_become_rare_but_never_stop() -> None:
    health = book()
    health.on_unreachable(A, 0)
    now, gaps = 0.0, []
    for _ in range(60):
        last = now
        while not (due := health.take_probes(now)):
            now += 0.25
        assert due == [Probe(A, canary=False)]
        gaps.append(now - last)
        health.on_probe(A, False, now)
    assert gaps[:5] == [0.5, 1, 2, 4, 8]
    assert gaps[-1] == HealthRules().probe_max_s


def test_a_probe_without_an_answer_counts_as_failed() -> None:
    health = book()
    health.on_unreachable(A, 0)
    assert health.take_probes(1) == [Probe(A, canary=False)]
    assert health.take_probes(5.9) == []
    assert health.take_probes(6.0) == []  # given up here, the next is due a second later
    assert health.take_probes(7.1) == [Probe(A, canary=False)]


def test_a_replica_that_never_answers_is_full_then_dead_and_hurts_nobody_else() -> None:
    health = book(max_num_seqs=2)
    health.on_sent(A)
    health.on_sent(A)
    assert health.state(A, 0) is S.SATURATED, "it can hold no more than its own share of requests"
    health.on_timeout(A, 30)
    health.on_ended(A)
    health.on_timeout(A, 31)
    health.on_ended(A)
    assert health.state(A, 31) is S.DEAD
    assert health.state(B, 31) is S.READY


def test_an_answer_in_between_forgives_a_timeout() -> None:
    health = book()
    for now in range(10):
        health.on_timeout(A, now)
        health.on_answer(A, now)
    assert health.state(A, 10) is S.READY


def test_a_late_answer_of_a_dead_replica_asks_for_a_probe_at_once() -> None:
    health = book()
    health.on_unreachable(A, 0)
    for now in (1, 3):
        health.take_probes(now)
        health.on_probe(A, False, now)
    assert health.take_probes(4) == []
    health.on_answer(A, 4)
    assert health.state(A, 4) is S.DEAD
    assert health.take_probes(4) == [Probe(A, canary=False)]


@pytest.mark.parametrize(("ours", "others", "state"), [(3, 0, S.READY), (1, 3, S.SATURATED), (0, 4, S.SATURATED)])
def test_saturated_is_what_all_gateways_wait_for_at_the_limit(ours: int, others: int, state: ReplicaState) -> None:
    health = book()
    for _ in range(ours):
        health.on_sent(A)
    health.on_others({A: others}, 0)
    assert health.load(A, 0) == ours + others
    assert health.state(A, 0) is state
    assert health.state(B, 0) is S.READY


def test_a_request_for_many_answers_counts_as_many() -> None:
    health = book()
    health.on_sent(A, 3)
    assert (health.load(A, 0), health.in_flight()) == (3, {A: 3})
    health.on_sent(A)
    assert health.state(A, 0) is S.SATURATED
    health.on_ended(A, 3)
    assert health.load(A, 0) == 1


def test_a_burst_that_is_over_leaves_no_load() -> None:
    """A report of the others that was on its way meanwhile says nothing about our own requests."""
    health = book()
    for _ in range(4):
        health.on_sent(A)
    health.on_others({A: 1}, 0)
    for _ in range(4):
        health.on_ended(A)
    assert health.load(A, 0) == 1
    assert health.state(A, 0) is S.READY
    health.on_others({}, 1)
    assert health.load(A, 1) == 0


def test_what_others_reported_ages() -> None:
    health = book()
    health.on_others({A: 4}, 0)
    assert health.state(A, 4.9) is S.SATURATED
    assert (health.state(A, 5), health.load(A, 5)) == (S.READY, 0)


def test_a_refusal_for_want_of_room_ends() -> None:
    health = book()
    assert health.on_full(A, 0) == 0.5
    assert health.state(A, 0.4) is S.SATURATED
    assert health.state(A, 0.6) is S.READY
    assert health.on_full(A, 1, retry_after_s=3) == 4
    assert health.state(A, 3.9) is S.SATURATED
    health.on_full(A, 5, retry_after_s=1e9)
    assert health.state(A, 36) is S.READY, "no replica can shut itself out for good"


def test_a_refusal_of_many_answers_says_nothing_about_one() -> None:
    health = book()
    health.on_full(A, 0, 40)
    assert health.state(A, 0.1) is S.READY
    assert health.fleet(0.1).replicas["a"].full_for == 40
    health.on_full(A, 0.2)
    assert health.state(A, 0.3) is S.SATURATED
    assert health.fleet(1).replicas["a"].full_for is None


def test_a_new_incarnation_starts_clean_and_ignores_what_concerned_the_old_one() -> None:
    health = book(max_num_seqs=2)
    health.on_sent(A)
    health.on_unreachable(A, 0)
    health.sync([ReplicaSpec(A2, 2), ReplicaSpec(B, 2)])
    assert health.state(A, 0) is None
    assert health.state(A2, 0) is S.READY
    health.on_sent(A2)
    health.on_ended(A)
    health.on_unreachable(A, 1)
    health.on_others({A: 9}, 1)
    health.on_failed(A, 1)
    health.on_full(A, 1)
    health.on_timeout(A, 1)
    health.on_timeout(A, 1)
    health.on_probe(A, False, 1)
    assert health.load(A2, 1) == 1
    assert health.state(A2, 1) is S.READY


def test_an_old_list_of_the_control_plane_brings_no_old_life_back() -> None:
    health = book()
    health.sync([ReplicaSpec(A2, 4)])
    health.sync([ReplicaSpec(A, 4)])
    assert health.state(A2, 0) is S.READY


def test_phases_come_from_the_control_plane_and_death_beats_them() -> None:
    health = book()
    health.sync([ReplicaSpec(A, 4, S.DRAINING), ReplicaSpec(B, 4, S.STARTING)])
    assert (health.state(A, 0), health.state(B, 0)) == (S.DRAINING, S.STARTING)
    assert takers(health.fleet(0), NO_REFUSALS, 0) == ()
    assert not health.fleet(0).busy()
    health.on_unreachable(A, 0)
    assert health.state(A, 0) is S.DEAD
    health.sync([ReplicaSpec(B, 4)])
    assert health.state(A, 0) is None
    assert takers(health.fleet(0), NO_REFUSALS, 0) == (B,)


def test_an_engine_that_computes_nothing_gets_no_new_sessions_while_others_are_there() -> None:
    health = book()
    health.sync([ReplicaSpec(A, 4, quiet=True), ReplicaSpec(B, 4, quiet=False)])
    assert takers(health.fleet(0), NO_REFUSALS, 0) == (B,)
    health.sync([ReplicaSpec(A, 4, quiet=True)])
    assert takers(health.fleet(0), NO_REFUSALS, 0) == (A,), "it may only be slow"


def test_long_answers_of_an_engine_that_computes_open_no_circuit() -> None:
    health = book()
    health.sync([ReplicaSpec(A, 4, quiet=False)])
    for now in range(0, 900, 300):
        health.on_timeout(A, now)
    assert health.state(A, 900) is S.READY
    assert health.take_probes(900) == []
    health.on_failed(A, 900)
    health.take_probes(900)
    assert health.take_probes(930) == [] and health.state(A, 930) is S.READY, "its canary waits behind long answers"
    assert health.take_probes(960) == [Probe(A, canary=True)]
    health.sync([ReplicaSpec(A, 4, quiet=True)])
    health.take_probes(991)
    assert health.state(A, 991) is S.DEAD


def test_only_who_left_after_a_drain_has_ended_in_order() -> None:
    health = HealthBook()
    for phase, ended in ((S.READY, False), (S.DRAINING, False), (S.STARTING, True)):
        health.sync([ReplicaSpec(A, 4, phase)])
        assert health.drained(A) is ended
    health.sync([ReplicaSpec(A2, 4)])
    assert health.drained(A) and not health.drained(A2)
    health.sync([ReplicaSpec(A2, 4, S.STARTING)])
    assert not health.drained(A2), "it was not draining"


@pytest.mark.parametrize(
    "after",
    [[ReplicaSpec(A, 4, S.STARTING)], [], [ReplicaSpec(A2, 4)]],
    ids=["its place is vacant", "the fleet is smaller", "another has its place"],
)
def test_a_life_that_drained_and_left_is_known_whatever_became_of_its_place(after: list[ReplicaSpec]) -> None:
    health = book()
    health.sync([ReplicaSpec(A, 4, S.DRAINING), ReplicaSpec(B, 4)])
    assert not health.drained(A), "one that breaks while it drains has died"
    health.sync([*after, ReplicaSpec(B, 4)])
    assert health.drained(A) and not health.drained(B)
    health.sync([ReplicaSpec(B, 4)])
    assert health.drained(A) and not health.drained(B), "B left without a word"


def test_a_life_that_comes_back_has_not_left() -> None:
    health = book()
    health.sync([ReplicaSpec(A, 4, S.DRAINING)])
    health.sync([])
    health.sync([ReplicaSpec(A, 4)])
    assert not health.drained(A)
