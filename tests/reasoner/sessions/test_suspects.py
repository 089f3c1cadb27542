"""Quarantine hits the item that killed twice, never its neighbours."""

import pytest

from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef
from cosmos3_serve.reasoner.sessions.suspects import CrashReport, SuspectTracker

BAD, GOOD, OTHER = "bad", "good", "other"


def life(n: int) -> ReplicaRef:
    return ReplicaRef("r", n)


def crash(tracker: SuspectTracker, ref: ReplicaRef, now: float, *media: str) -> list[str]:
    tracker.board(ref, media)
    tracker.on_died(ref, now)
    tracker.leave(ref, media)
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
    owner.on_report(CrashReport(life(2), (GOOD,)), 10)
    owner.on_report(CrashReport(life(2), (BAD,)), 11)
    assert owner.settle(13.5) == [], "the good one was not alone: another gateway had the bad one there"
    owner.on_report(CrashReport(life(2), (OTHER,)), 14)  # late: no second death
    assert owner.settle(20) == []
    assert owner.suspect(OTHER)


def test_a_gateway_reports_and_leaves_the_verdict_to_the_owner() -> None:
    gateway, owner = SuspectTracker(judge=False), SuspectTracker()
    for n in (1, 2):
        assert crash(gateway, life(n), 10 * n, BAD) == []
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
    assert (proofs, reports) == ([GOOD], [CrashReport(life(1), (BAD,))])
    assert (gateway.take_proofs(10), gateway.take_reports()) == ([], [])
    gateway.give_back(proofs, reports)
    assert (gateway.take_proofs(10), gateway.take_reports()) == (proofs, reports)


def test_two_requests_with_one_item_leave_one_after_the_other() -> None:
    tracker = SuspectTracker()
    tracker.board(life(1), [BAD])
    tracker.board(life(1), [BAD])
    tracker.leave(life(1), [BAD])
    tracker.on_died(life(1), 0)
    tracker.settle(3)
    assert tracker.suspect(BAD)
    tracker.leave(life(1), [BAD])
    tracker.leave(life(1), [BAD])
    assert not tracker._aboard


@pytest.mark.parametrize("count", [200])
def test_every_set_is_bounded(count: int) -> None:
    tracker = SuspectTracker(max_items=10, judge=False)
    owner = SuspectTracker(max_items=10)
    for n in range(count):
        tracker.on_answered(f"p{n}")
        crash(tracker, life(n), n, f"s{n}")
        owner.on_report(CrashReport(life(n), (f"s{n}",)), 10.0 * n)
        owner.learn(quarantined=[f"q{n}"], now=n)
        owner.settle(10.0 * n)
    assert len(tracker._proven) == len(tracker._suspects) == len(tracker._fresh_proofs) == 10
    assert len(owner._suspects) == len(owner._quarantine) == 10
    assert len(owner._crashes) == 1
