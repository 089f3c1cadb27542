from itertools import pairwise

import pytest
from pydantic import ValidationError

from cosmos3_serve.bench.generator.arrivals import Arrivals
from cosmos3_serve.bench.generator.shapes import Mix, Shape


def test_each_kind_comes_when_it_says() -> None:
    assert Arrivals.parse("burst").offsets(3, 1) == [0.0, 0.0, 0.0]
    assert Arrivals.parse("steady:4").offsets(3, 1) == [0.0, 0.25, 0.5]
    assert Arrivals.parse("closed:8").clients == 8


def test_random_arrivals_have_their_rate_and_their_seed() -> None:
    poisson = Arrivals.parse("poisson:5")
    offsets = poisson.offsets(2001, 7)
    assert offsets[0] == 0 and offsets == sorted(offsets)
    assert offsets[-1] / 2000 == pytest.approx(1 / 5, rel=0.1)
    gaps = [after - before for before, after in pairwise(offsets)]
    assert sum(gap > 0.4 for gap in gaps) / 2000 == pytest.approx(0.135, abs=0.03), "e^-2 of the gaps are that long"
    assert poisson.offsets(20, 7) == offsets[:20] and poisson.offsets(20, 8) != offsets[:20]


@pytest.mark.parametrize(
    "text", ["", "burst:3", "steady", "poisson:0", "poisson:-1", "poisson:nan", "poisson:x", "closed", "closed:2.5",
             "closed:9999", "rush:1"],
)  # fmt: skip
def test_arrivals_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises((ValidationError, ValueError)):
        Arrivals.parse(text)


@pytest.mark.parametrize("text", ["burst", "steady:4", "poisson:0.5", "closed:8"])
def test_a_label_is_what_was_written(text: str) -> None:
    assert Arrivals.parse(text).label == text


def test_a_mix_takes_turns() -> None:
    mix = Mix.parse("1x4+25x10@256")
    assert [mix.of(n).label for n in range(3)] == ["1x4", "25x10@256", "1x4"]
    assert mix.label == "1x4+25x10@256"
    assert mix.of(1).fields() == {"num_frames": 25, "num_steps": 10, "resolution": "256"}
    assert Shape.parse("1x4").fields() == {"num_frames": 1, "num_steps": 4}


@pytest.mark.parametrize("text", ["", "1", "1x", "0x4", "1x0", "1x4@9000", "1x4+", "-1x4", "1x4@", "9999999x1"])
def test_shapes_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises((ValidationError, ValueError)):
        Mix.parse(text)
