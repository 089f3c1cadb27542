"""What changes a replica's health, and what must not."""

import pytest

from cosmos3_serve.reasoner.fleet.health import HealthBook, HealthRules, ReplicaSpec
from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef, ReplicaState

A, B = ReplicaRef("a", 1), ReplicaRef("b", 1)
A2 = ReplicaRef("a", 2)
S = ReplicaState


def book(max_num_seqs: int = 4) -> HealthBook:
    health = HealthBook()
    health.sync([ReplicaSpec(A, max_num_seqs), ReplicaSpec(B, max_num_seqs)])
    return health


@pytest.mark.parametrize("status", [400, 401, 404, 409, 413, 415, 422, 499])
def test_fifty_client_errors_change_nothing(status: int) -> None:
    health = book()
    for _ in range(50):
        health.on_sent(A)
        health.on_answer(A, status, 0)
        health.on_ended(A)
    assert health.state(A, 0) is S.READY
    assert health.take_probes(0) == []


@pytest.mark.parametrize("status", [500, 502, 504])
def test_server_errors_ask_for_a_probe_and_only_the_probe_decides(status: int) -> None:
    health = book()
    for _ in range(50):
        health.on_answer(A, status, 0)
    assert health.state(A, 0) is S.READY
    assert health.take_probes(0) == [A]
    assert health.take_probes(0) == []
    health.on_probe(A, True, 0)
    assert health.state(A, 0) is S.READY
    health.on_answer(A, status, 0)
    assert health.take_probes(1) == [A]
    health.on_probe(A, False, 1)
    assert health.state(A, 1) is S.DEAD


def test_a_replica_that_is_not_there_is_dead_until_a_probe_says_otherwise() -> None:
    health = book()
    health.on_unreachable(A, 10)
    assert health.state(A, 10) is S.DEAD
    assert health.state(B, 10) is S.READY
    assert health.take_probes(10.4) == []
    assert health.take_probes(10.5) == [A]
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
        assert due == [A]
        gaps.append(now - last)
        health.on_probe(A, False, now)
    assert gaps[:5] == [0.5, 1, 2, 4, 8]
    assert gaps[-1] == HealthRules().probe_max_s


def test_a_probe_without_an_answer_counts_as_failed() -> None:
    health = book()
    health.on_unreachable(A, 0)
    assert health.take_probes(1) == [A]
    assert health.take_probes(5.9) == []
    assert health.take_probes(6.0) == []  # given up here, the next is due a second later
    assert health.take_probes(7.1) == [A]


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
        health.on_answer(A, 200, now)
    assert health.state(A, 10) is S.READY


def test_a_late_answer_of_a_dead_replica_asks_for_a_probe_at_once() -> None:
    health = book()
    health.on_unreachable(A, 0)
    for now in (1, 3):
        health.take_probes(now)
        health.on_probe(A, False, now)
    assert health.take_probes(4) == []
    health.on_answer(A, 200, 4)
    assert health.state(A, 4) is S.DEAD
    assert health.take_probes(4) == [A]


@pytest.mark.parametrize(("running", "waiting", "state"), [(3, 0, S.READY), (3, 1, S.SATURATED), (0, 4, S.SATURATED)])
def test_saturated_is_running_plus_waiting_at_the_limit(running: int, waiting: int, state: ReplicaState) -> None:
    health = book()
    health.on_load(A, running, waiting)
    assert health.state(A, 0) is state


def test_own_requests_count_between_two_load_reports() -> None:
    health = book()
    health.on_sent(A)
    health.on_load(A, 3, 0)  # ours and two of others
    assert health.load(A) == 3
    health.on_sent(A)
    assert health.state(A, 0) is S.SATURATED
    health.on_ended(A)
    health.on_ended(A)
    assert health.load(A) == 2
    assert health.state(A, 0) is S.READY


def test_429_and_503_mean_full_for_a_while() -> None:
    health = book()
    health.on_answer(A, 429, 0)
    assert health.state(A, 0.4) is S.SATURATED
    assert health.state(A, 0.6) is S.READY
    health.on_answer(A, 503, 1, retry_after_s=3)
    assert health.state(A, 3.9) is S.SATURATED
    health.on_answer(A, 503, 5, retry_after_s=1e9)
    assert health.state(A, 36) is S.READY, "no replica can shut itself out for good"


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
    health.on_load(A, 9, 9)
    health.on_timeout(A, 1)
    health.on_timeout(A, 1)
    health.on_probe(A, False, 1)
    assert health.load(A2) == 1
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
    assert health.fleet(0).ready() == []
    assert not health.fleet(0).busy()
    health.on_unreachable(A, 0)
    assert health.state(A, 0) is S.DEAD
    health.sync([ReplicaSpec(B, 4)])
    assert health.state(A, 0) is None
    assert health.fleet(0).ready() == [B]
