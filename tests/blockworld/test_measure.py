"""The measures find in drawn pictures what was drawn, at both sizes and all lengths."""

import random

import numpy as np
import pytest

from cosmos3_serve.blockworld import draw, measure, words
from cosmos3_serve.blockworld.scene import COLOURS, SHAPES, Scene, sample_scene

SIZES = ((256, 256), (320, 192))


def names(scene: Scene) -> list[tuple[str, str]]:
    return sorted((COLOURS[t.colour], SHAPES[t.shape]) for t in scene.things)


@pytest.mark.parametrize("size", SIZES)
def test_colours_shapes_and_count_of_pictures(size: tuple[int, int]) -> None:
    rng = random.Random(7)
    for _ in range(12):
        scene = sample_scene(rng, moving=False)
        assert sorted(seen.name for seen in measure.objects(draw.render(scene, 1, *size)[0])) == names(scene)


@pytest.mark.parametrize("frames", [5, 9])
def test_motions_of_clips(frames: int) -> None:
    rng = random.Random(frames)
    for _ in range(8):
        scene = sample_scene(rng, moving=True)
        found = {(t.colour, t.shape): t.motion for t in measure.tracks(draw.render(scene, frames, 320, 192))}
        for index, thing in enumerate(scene.things):
            event = scene.event_of(index)
            wanted = words.deed(scene, event) if event else "stands still"
            assert found[COLOURS[thing.colour], SHAPES[thing.shape]] == wanted


def test_two_clips_that_are_swapped_are_told_apart() -> None:
    rng = random.Random(3)
    scenes = [sample_scene(rng, moving=False) for _ in range(2)]
    pictures = [draw.render(scene, 1, 256, 256)[0] for scene in scenes]
    seen = [sorted(s.name for s in measure.objects(picture)) for picture in pictures]
    assert seen == [names(scene) for scene in scenes]
    assert seen[::-1] != [names(scene) for scene in scenes]


def test_components_join_what_touches_and_nothing_else() -> None:
    mask = np.zeros((6, 9), np.bool_)
    mask[0:4, 0], mask[3, 0:4], mask[0:4, 3] = True, True, True  # a cup: joined by its lower edge alone
    mask[0:2, 6:8] = True
    assert sorted(int(region.sum()) for region in measure.components(mask)) == [4, 10]


def test_a_picture_without_colour_holds_nothing() -> None:
    assert measure.objects(np.full((64, 64, 3), 130, np.uint8)) == []
    assert measure.tracks(np.full((3, 64, 64, 3), 130, np.uint8)) == []


def test_psnr() -> None:
    black = np.zeros((4, 4, 3), np.uint8)
    assert measure.psnr(black, black + np.uint8(255)) == pytest.approx(0.0)
    assert measure.psnr(black, black) > 100
