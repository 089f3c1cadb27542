"""Heuristics flag what looks wrong and say how much was looked at."""

import pytest
from PIL import Image
from support.publication import picture

from cosmos3_serve.review.defects import possible_defects

SIZE = (64, 48)


def plain(level: int) -> Image.Image:
    return Image.new("RGB", SIZE, (level, level, level))


@pytest.mark.parametrize(
    ("frames", "moving", "expected"),
    [
        ([], True, ()),
        ([picture(SIZE)], False, ()),
        ([picture(SIZE, step) for step in range(4)], True, ()),
        ([plain(0)], False, ("possible defect: the picture is black",)),
        ([plain(255)], False, ("possible defect: the picture is white",)),
        ([plain(128)], False, ("possible defect: the picture is one flat colour",)),
        ([plain(3), picture(SIZE), picture(SIZE, 2)], True, ("possible defect: 1 of 3 frames looked at are black",)),
        ([picture(SIZE)] * 3, True, ("possible defect: no motion between 3 frames looked at",)),
        ([picture(SIZE)] * 3, False, ()),
    ],
)
def test_what_is_flagged(frames: list[Image.Image], moving: bool, expected: tuple[str, ...]) -> None:
    assert possible_defects(frames, moving=moving) == expected


def test_noise_is_no_defect() -> None:
    noise = [Image.effect_noise(SIZE, 60).convert("RGB") for _ in range(3)]
    assert possible_defects(noise, moving=True) == ()
