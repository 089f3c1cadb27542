"""The size of a fleet over time, by a hand-turned clock."""

from __future__ import annotations

import random

import pytest

from cosmos3_serve.reasoner.fleet.member import Demand
from cosmos3_serve.reasoner.fleet.scaling import GROW_AFTER_S, Sizing, gateways_for
from cosmos3_serve.settings import WorkerRange

KEEP_S = 20.0


class Fleet:
    """A fleet that has whatever is wanted at once."""

    def __init__(self, least: int = 1, most: int = 8, *, start: int = 1, scale_load: int | None = 4) -> None:
        self.least, self.most, self.size = least, most, start
        self.sizing = Sizing(scale_load=scale_load, keep_s=KEEP_S, start_s=60.0)
        self.now = 100.0
        self.loading = False

    def step(self, answers: int, *, asked: bool = False, seqs: int = 0, known: bool = True) -> int:
        demand = Demand(answers, asked, seqs, self.size, settled=True) if known else None
        serving = 0 if self.loading else self.size
        self.size = self.sizing.wanted(demand, self.size, serving, self.now, self.least, self.most)
        self.now += 0.5
        return self.size

    def run(self, answers: int, seconds: float, **how: bool) -> list[int]:
        return [self.step(answers, **how) for _ in range(int(seconds * 2))]


def test_it_grows_by_what_is_asked_for_throughout_the_last_seconds() -> None:
    fleet = Fleet()
    sizes = fleet.run(12, GROW_AFTER_S + 1)
    assert sizes[:10] == [1] * 10 and sizes[-1] == 3
    assert fleet.run(1000, 10)[-1] == 8, "never above the range"


def test_a_burst_that_is_over_starts_nothing() -> None:
    fleet = Fleet()
    for _ in range(10):
        assert set(fleet.run(30, GROW_AFTER_S - 1) + fleet.run(1, 1)) == {1}


def test_it_shrinks_to_the_most_that_was_asked_for_within_the_time_kept() -> None:
    fleet = Fleet(start=4)
    fleet.run(16, 10)
    fleet.run(8, 1)
    assert set(fleet.run(1, KEEP_S - 2)) == {4}
    sizes = fleet.run(1, 10)
    assert sizes[-1] == 1 and sorted(set(sizes)) == [1, 2, 4] and sizes == sorted(sizes, reverse=True)


def test_a_fleet_that_nobody_asks_sleeps_and_goes_to_none_from_one() -> None:
    fleet = Fleet(least=0, start=3)
    sizes = fleet.run(0, KEEP_S + 5)
    assert sizes[0] == 3 and sizes[-1] == 0
    assert sizes[sizes.index(0) - 1] == 1, "Serve reaches none from one only"
    assert fleet.run(0, 100)[-1] == 0


@pytest.mark.parametrize("how", [{"asked": True}, {"answers": 1}])
def test_a_question_wakes_it_at_once_and_its_first_replica_may_take_its_time(how: dict[str, int]) -> None:
    fleet = Fleet(least=0, start=0, scale_load=None)
    assert fleet.step(how.get("answers", 0), asked=bool(how.get("asked"))) == 1
    fleet.loading = True
    assert set(fleet.run(0, 59)) == {1}, "it does not sleep again before it has served"
    fleet.loading = False
    fleet.run(0, KEEP_S - 1)
    assert fleet.run(0, 3)[-1] == 0


def test_one_that_never_loads_sleeps_again() -> None:
    fleet = Fleet(least=0, start=0)
    fleet.step(0, asked=True)
    fleet.loading = True
    assert fleet.run(0, 60 + KEEP_S + 2)[-1] == 0


def test_without_a_word_of_the_load_it_stays_as_it_is() -> None:
    fleet = Fleet(start=3)
    fleet.run(12, KEEP_S)
    assert set(fleet.run(0, 10 * KEEP_S, known=False)) == {3}
    assert fleet.run(0, KEEP_S - 1)[-1] == 3, "nor does it shrink at the first word"


def test_a_new_policy_does_not_undo_what_the_one_before_it_saw() -> None:
    fleet = Fleet(start=5)
    assert set(fleet.run(0, KEEP_S - 1)) == {5}


def test_three_quarters_of_what_a_replica_works_on_are_meant_for_it() -> None:
    fleet = Fleet(scale_load=None)
    for _ in range(20):
        fleet.step(13, seqs=8)
    assert fleet.size == 3  # 13 / 6


def test_the_size_stays_in_its_range_and_follows_whatever_comes() -> None:
    chance = random.Random(13)
    fleet = Fleet(least=2, most=5, start=2)
    for _ in range(2000):
        assert 2 <= fleet.step(chance.randrange(40), known=chance.random() < 0.9) <= 5
    assert len(fleet.sizing._most._sizes) <= 5 and len(fleet.sizing._least._sizes) <= 5


@pytest.mark.parametrize(
    ("most", "workers", "wanted", "gateways"),
    [(4, (2, 8), 2, 1), (4, (2, 8), 3, 2), (4, (2, 8), 8, 4), (4, (0, 8), 0, 1), (4, (8, 8), 8, 4), (1, (0, 8), 5, 1)],
)
def test_gateways_are_in_proportion(most: int, workers: tuple[int, int], wanted: int, gateways: int) -> None:
    assert gateways_for(most, WorkerRange(*workers), wanted) == gateways
