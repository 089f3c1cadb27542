"""The table of soft and hard, case by case."""

import pytest

from cosmos3_serve.reasoner.fleet.replicas import Fleet, ReplicaRef, ReplicaState, ReplicaView
from cosmos3_serve.reasoner.sessions.decide import NO_REFUSALS, Action, Choice, Refusals, decide, takers
from cosmos3_serve.reasoner.sessions.policy import Mode, Outcome

HOME = ReplicaRef("a", 2)
NEXT = ReplicaRef("a", 3)
S = ReplicaState


def action(
    home: ReplicaRef | None, fleet: Fleet, mode: Mode, refused: Refusals = NO_REFUSALS, now: float = 0
) -> Action:
    return decide(home, None, fleet, refused, now, mode=mode).action


@pytest.mark.parametrize(
    ("there", "soft", "hard"),
    [
        (ReplicaView(2, S.READY), Action.STAY, Action.STAY),
        (ReplicaView(2, S.SATURATED), Action.SPILL, Action.BUSY),
        (ReplicaView(2, S.DRAINING), Action.PLACE, Action.LOST),
        (ReplicaView(2, S.DEAD), Action.PLACE, Action.LOST),
        (ReplicaView(2, S.STARTING), Action.PLACE, Action.LOST),
        (ReplicaView(3, S.READY), Action.FOLLOW, Action.FOLLOW),
        (ReplicaView(3, S.STARTING), Action.PLACE, Action.LOST),
        (ReplicaView(3, S.SATURATED), Action.PLACE, Action.LOST),
        (ReplicaView(3, S.DEAD), Action.PLACE, Action.LOST),
        (None, Action.PLACE, Action.PLACE),
    ],
)
def test_what_a_request_may_do(there: ReplicaView | None, soft: Action, hard: Action) -> None:
    fleet = Fleet({"b": ReplicaView(1, S.READY)} | ({"a": there} if there else {}))
    assert action(HOME, fleet, Mode.SOFT) is soft
    assert action(HOME, fleet, Mode.HARD) is hard


def test_without_a_home_any_place_will_do() -> None:
    for mode in Mode:
        assert action(None, Fleet(), mode) is Action.PLACE


def test_a_home_that_refused_this_request_counts_as_full_for_it() -> None:
    fleet = Fleet({"a": ReplicaView(2, S.READY)})
    assert action(HOME, fleet, Mode.SOFT, {HOME: 1}) is Action.SPILL
    assert action(HOME, fleet, Mode.HARD, {HOME: 1}) is Action.BUSY
    assert action(HOME, fleet, Mode.SOFT, {ReplicaRef("a", 1): 1}) is Action.STAY
    restarted = Fleet({"a": ReplicaView(3, S.READY)})
    assert action(HOME, restarted, Mode.SOFT, {NEXT: 1}) is Action.PLACE
    assert action(HOME, fleet, Mode.SOFT, {HOME: 1}, now=1) is Action.STAY, "the refusal is over"
    assert action(HOME, fleet, Mode.HARD, {HOME: 1}, now=1) is Action.STAY


def test_everybody_follows_a_request_that_is_on_its_way() -> None:
    fleet = Fleet({"a": ReplicaView(2, S.DEAD), "b": ReplicaView(1, S.READY), "c": ReplicaView(1, S.READY)})
    there = ReplicaRef("c", 1)
    for home, outcome in ((None, Outcome.HIT), (HOME, Outcome.MOVED)):
        choice = decide(home, there, fleet, NO_REFUSALS, 0, mode=Mode.SOFT)
        assert choice == Choice(Action.STAY, outcome, there, (there,), reserved=True)
    spilled = decide(HOME, there, fleet, {there: 1}, 0, mode=Mode.SOFT)
    assert (spilled.action, spilled.home, spilled.candidates) == (Action.SPILL, there, (ReplicaRef("b", 1),))


def test_a_refusal_of_many_answers_leaves_room_for_few() -> None:
    fleet = Fleet({"a": ReplicaView(2, S.READY, full_for=40)})
    assert decide(HOME, None, fleet, NO_REFUSALS, 0, 39, mode=Mode.SOFT).action is Action.STAY
    assert decide(HOME, None, fleet, NO_REFUSALS, 0, 40, mode=Mode.SOFT).action is Action.SPILL
    assert takers(fleet, NO_REFUSALS, 0, 40) == ()


def test_a_replica_that_leaves_or_is_examined_gets_new_sessions_only_if_nobody_else_takes_them() -> None:
    a, b, c = (ReplicaRef(name, 1) for name in "abc")
    views = {"a": ReplicaView(1, S.READY, leaving=True), "b": ReplicaView(1, S.READY, examined=True)}
    rest = {"c": ReplicaView(1, S.READY)}
    new = decide(None, None, Fleet(views | rest), NO_REFUSALS, 0, mode=Mode.SOFT)
    assert (new.candidates, new.outcome) == ((c,), Outcome.NEW)
    none = decide(None, None, Fleet(views | rest), NO_REFUSALS, 0, mode=Mode.SOFT, binds=False)
    assert (none.candidates, none.outcome) == ((a, c), Outcome.NONE)
    assert decide(None, None, Fleet(views | rest), {c: 1}, 0, mode=Mode.SOFT).candidates == (a,)
    assert decide(None, None, Fleet({"b": views["b"]}), NO_REFUSALS, 0, mode=Mode.SOFT).candidates == (b,)
    assert decide(b, None, Fleet(views | rest), NO_REFUSALS, 0, mode=Mode.SOFT).action is Action.STAY
