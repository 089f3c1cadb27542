"""Quarantine hits the item that killed twice, never its neighbours."""

import pytest

from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef
from cosmos3_serve.reasoner.sessions.suspects import HOLD_S, Aboard, CrashReport, SuspectTracker

BAD, GOOD, OTHER = "bad", "good", "other"


def life(n: int) -> ReplicaRef:
    return ReplicaRef("r", n)


def clips(*media: str) -> tuple[Aboard, ...]:
    return tuple(Aboard("", (item,)) for item in media)


def crash(tracker: SuspectTracker, ref: ReplicaRef, now: float, *media: str, machine: bool = False) -> list[str]:
    """The engine of `ref` dies with these aboard, each in a request of its own; or (`machine`) all of it is lost."""
    return crash_on(tracker, ref, now, *clips(*media), machine=machine)


def crash_on(
    tracker: SuspectTracker, ref: ReplicaRef, now: float, *requests: Aboard, machine: bool = False
) -> list[str]:
    for request in requests:
        tracker.board(ref, request)
    tracker.on_died(ref, now)
    for request in requests:
        tracker.leave(ref, request)
    if not machine:
        tracker.on_engine_ended(ref)
    return tracker.settle(now + 3)


def test_the_second_death_with_it_alone_quarantines() -> None:
    tracker = SuspectTracker()
    assert crash(tracker, life(1), 0, BAD) == []
    assert tracker.suspect(BAD)
    assert not tracker.quarantined(BAD, 3)
    assert crash(tracker, life(2), 10, BAD) == [BAD]
    assert tracker.quarantined(BAD, 13)
    assert not tracker.quarantined(BAD, 13 + 3600), "for a time, not for good"
    assert not tracker.quarantined(BAD, 13)


def test_company_is_suspected_and_never_condemned_for_it() -> None:
    tracker = SuspectTracker()
    for n in range(5):
        assert crash(tracker, life(n), 10 * n, BAD, GOOD) == []
    assert crash(tracker, life(9), 100, BAD) == [BAD]
    assert not tracker.quarantined(GOOD, 103)


def test_what_a_replica_has_answered_is_never_suspected() -> None:
    tracker = SuspectTracker()
    tracker.on_answered(GOOD)
    for n in range(3):
        assert crash(tracker, life(n), 10 * n, GOOD) == []
    assert not tracker.suspect(GOOD)
    assert crash(tracker, life(7), 70, GOOD, BAD) == []
    assert crash(tracker, life(8), 80, GOOD, BAD) == [BAD], "beside proven media it is alone"


def test_an_answer_clears_a_suspect() -> None:
    tracker = SuspectTracker()
    crash(tracker, life(1), 0, GOOD)
    assert tracker.on_answered(GOOD)
    assert not tracker.on_answered(GOOD)
    assert not tracker.suspect(GOOD)
    assert crash(tracker, life(2), 10, GOOD) == []


def test_reports_of_two_gateways_on_one_death_are_one_death() -> None:
    owner = SuspectTracker()
    crash(owner, life(1), 0, GOOD)
    owner.on_engine_ended(life(2))
    owner.on_report(CrashReport(life(2), clips(GOOD)), 10)
    owner.on_report(CrashReport(life(2), clips(BAD)), 11)
    assert owner.settle(13.5) == [], "the good one was not alone: another gateway had the bad one there"
    owner.on_report(CrashReport(life(2), clips(OTHER)), 14)  # late: no second death
    assert owner.settle(20) == []
    assert owner.suspect(OTHER)


def test_a_gateway_reports_and_leaves_the_verdict_to_the_owner() -> None:
    gateway, owner = SuspectTracker(judge=False), SuspectTracker()
    for n in (1, 2):
        assert crash(gateway, life(n), 10 * n, BAD) == []
        owner.on_engine_ended(life(n))
        for report in gateway.take_reports():
            owner.on_report(report, 10 * n)
        guilty = owner.settle(10 * n + 3)
    assert guilty == [BAD]
    gateway.learn(quarantined=guilty, now=30)
    assert gateway.quarantined(BAD, 30)


def test_what_could_not_be_told_is_told_later_in_order() -> None:
    gateway = SuspectTracker(judge=False)
    gateway.on_answered(GOOD)
    crash(gateway, life(1), 0, BAD)
    proofs, reports = gateway.take_proofs(10), gateway.take_reports()
    assert (proofs, reports) == ([GOOD], [CrashReport(life(1), clips(BAD))])
    assert (gateway.take_proofs(10), gateway.take_reports()) == ([], [])
    gateway.give_back(proofs, reports)
    assert (gateway.take_proofs(10), gateway.take_reports()) == (proofs, reports)


def test_two_requests_with_one_item_leave_one_after_the_other() -> None:
    tracker = SuspectTracker()
    tracker.board(life(1), *clips(BAD))
    tracker.board(life(1), *clips(BAD))
    tracker.leave(life(1), *clips(BAD))
    tracker.on_died(life(1), 0)
    tracker.settle(3)
    assert tracker.suspect(BAD)
    tracker.leave(life(1), *clips(BAD))
    tracker.leave(life(1), *clips(BAD))
    assert not tracker._aboard


@pytest.mark.parametrize("count", [200])
def test_every_set_is_bounded(count: int) -> None:
    tracker = SuspectTracker(max_items=10, judge=False)
    owner = SuspectTracker(max_items=10)
    for n in range(count):
        tracker.on_answered(f"p{n}")
        crash(tracker, life(n), n, f"s{n}")
        owner.on_engine_ended(life(n))
        owner.on_report(CrashReport(life(n), clips(f"s{n}")), 10.0 * n)
        owner.learn(quarantined=[f"q{n}"], now=n)
        owner.settle(10.0 * n)
    assert len(tracker._proven) == len(tracker._held) == len(tracker._fresh_proofs) == 10
    assert len(owner._suspects) == len(owner._quarantine) == len(owner._held) == 10
    assert len(owner._crashes) == 1


def test_machines_that_are_lost_condemn_nothing() -> None:
    tracker = SuspectTracker()
    for n in range(4):
        assert crash(tracker, life(n), 10 * n, GOOD, machine=True) == []
    assert not tracker.quarantined(GOOD, 40)
    assert crash(tracker, life(8), 80, GOOD) == [], "the first death that says anything"
    assert crash(tracker, life(9), 90, GOOD) == [GOOD]


def test_a_request_without_media_is_judged_by_its_digest() -> None:
    tracker = SuspectTracker()
    assert crash_on(tracker, life(1), 0, Aboard("killer")) == []
    assert crash_on(tracker, life(2), 10, Aboard("killer")) == ["killer"]
    tracker.on_completed("good")
    for n in range(3, 6):
        assert crash_on(tracker, life(n), 10 * n, Aboard("good")) == []


def test_a_clip_is_found_although_each_question_about_it_is_another() -> None:
    tracker = SuspectTracker()
    assert crash_on(tracker, life(1), 0, Aboard("one", (BAD,))) == []
    assert crash_on(tracker, life(2), 10, Aboard("two", (BAD,)), Aboard("three", (BAD,))) == [BAD]


def test_a_killer_that_never_travels_alone_is_found_at_the_third_death() -> None:
    tracker = SuspectTracker()
    for n in (1, 2):
        assert crash_on(tracker, life(n), 10 * n, Aboard("killer"), Aboard(f"a{n}"), Aboard(f"b{n}", (GOOD,))) == []
    assert crash_on(tracker, life(3), 30, Aboard("killer"), Aboard("c"), Aboard("d")) == ["killer"]
    assert not tracker.quarantined(GOOD, 33)


def test_what_was_aboard_is_held_until_it_is_judged_and_longer_the_second_time() -> None:
    tracker = SuspectTracker()
    crash(tracker, life(1), 0, BAD, GOOD)
    assert tracker.held(BAD, HOLD_S - 1) == 1
    assert tracker.held(BAD, HOLD_S) == 0
    crash(tracker, life(2), 10, BAD, GOOD)
    assert tracker.held(GOOD, 10 + 2 * HOLD_S) > 0
    tracker.on_answered(GOOD)
    assert tracker.held(GOOD, 11) == 0


def test_suspicion_ages() -> None:
    tracker = SuspectTracker(suspect_s=100)
    crash(tracker, life(1), 0, GOOD)
    assert crash(tracker, life(2), 200, GOOD) == []
    assert crash(tracker, life(3), 250, GOOD) == [GOOD]
