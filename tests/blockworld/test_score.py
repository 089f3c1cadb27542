"""Drawn scenes show themselves and nothing else."""

import numpy as np

from cosmos3_serve.blockworld import draw, measure, score
from cosmos3_serve.blockworld.scene import Event, Scene, Thing

RED_CUBE, BLUE_SPHERE = Thing(1, 0, 1, 0, 0), Thing(0, 2, 1, 2, 0)
PAIR, ALONE = Scene((RED_CUBE, BLUE_SPHERE)), Scene((RED_CUBE,))
RIGHT, FALLS = Scene((RED_CUBE,), (Event(0, 0, to=2),)), Scene((RED_CUBE,), (Event(0, 1),))


def frames(scene: Scene, count: int = 9) -> np.ndarray:
    return draw.render(scene, count, 320, 192)


def test_a_picture_shows_its_own_scene_only() -> None:
    assert score.names(PAIR) == [("blue", "sphere"), ("red", "cube")]
    for shown in (PAIR, ALONE):
        for asked in (PAIR, ALONE):
            assert score.picture_shows(asked, frames(shown, 1)[0]) is (shown is asked)


def test_a_clip_shows_the_motion_that_was_asked_for() -> None:
    for shown in (RIGHT, FALLS, ALONE):
        for asked in (RIGHT, FALLS):
            assert score.clip_shows(asked, frames(shown)) is (shown is asked)
    assert score.obeyed(RIGHT, measure.tracks(frames(RIGHT)))


def test_a_clip_without_events_is_judged_by_its_first_frame() -> None:
    assert score.clip_shows(ALONE, frames(ALONE))
    assert not score.clip_shows(ALONE, frames(PAIR))
    assert not score.picture_shows(ALONE, np.full((192, 320, 3), 128, np.uint8))


def test_what_is_seen_is_told_in_words() -> None:
    assert score.told(frames(PAIR, 1)[0]) == "a red cube and a blue sphere"
    assert score.told(np.full((192, 320, 3), 128, np.uint8)) == "no object"
    assert score.told_of_clip(frames(RIGHT)) == "a red cube that slides to the right"
    flicker = frames(ALONE)
    flicker[4] = 128
    assert score.told_of_clip(flicker) == "a red cube, and nothing that can be followed from frame to frame"
