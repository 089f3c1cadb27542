"""The table of soft and hard, case by case."""

import pytest

from cosmos3_serve.errors import UsageError
from cosmos3_serve.reasoner.fleet.replicas import Fleet, ReplicaRef, ReplicaState, ReplicaView
from cosmos3_serve.reasoner.sessions.policy import AffinityRules, Course, Mode, course

HOME = ReplicaRef("a", 2)
NEXT = ReplicaRef("a", 3)
S = ReplicaState


@pytest.mark.parametrize(
    ("there", "soft", "hard"),
    [
        (ReplicaView(2, S.READY), Course.STAY, Course.STAY),
        (ReplicaView(2, S.SATURATED), Course.SPILL, Course.BUSY),
        (ReplicaView(2, S.DRAINING), Course.PLACE, Course.LOST),
        (ReplicaView(2, S.DEAD), Course.PLACE, Course.LOST),
        (ReplicaView(2, S.STARTING), Course.PLACE, Course.LOST),
        (ReplicaView(3, S.READY), Course.FOLLOW, Course.FOLLOW),
        (ReplicaView(3, S.STARTING), Course.PLACE, Course.LOST),
        (ReplicaView(3, S.SATURATED), Course.PLACE, Course.LOST),
        (ReplicaView(3, S.DEAD), Course.PLACE, Course.LOST),
        (None, Course.PLACE, Course.PLACE),
    ],
)
def test_what_a_request_may_do(there: ReplicaView | None, soft: Course, hard: Course) -> None:
    fleet = Fleet({"b": ReplicaView(1, S.READY)} | ({"a": there} if there else {}))
    assert course(HOME, fleet, mode=Mode.SOFT) is soft
    assert course(HOME, fleet, mode=Mode.HARD) is hard


def test_without_a_home_any_place_will_do() -> None:
    for mode in Mode:
        assert course(None, Fleet(), mode=mode) is Course.PLACE


def test_a_home_that_refused_this_request_counts_as_full_for_it() -> None:
    fleet = Fleet({"a": ReplicaView(2, S.READY)})
    assert course(HOME, fleet, mode=Mode.SOFT, refused={HOME}) is Course.SPILL
    assert course(HOME, fleet, mode=Mode.HARD, refused={HOME}) is Course.BUSY
    assert course(HOME, fleet, mode=Mode.SOFT, refused={ReplicaRef("a", 1)}) is Course.STAY
    restarted = Fleet({"a": ReplicaView(3, S.READY)})
    assert course(HOME, restarted, mode=Mode.SOFT, refused={NEXT}) is Course.PLACE


@pytest.mark.parametrize("bad", [{"ttl_s": 0}, {"max_sessions": 0}, {"flush_interval_s": -1}, {"ttl_s": 3.9}])
def test_rules_that_cannot_work_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        AffinityRules(**bad)  # type: ignore[arg-type]
