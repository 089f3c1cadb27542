"""A sample that asks for a scene: drawn, it shows it; another scene's pixels are told by name."""

from pathlib import Path

import pytest
from support.scenes import write_scene

from cosmos3_serve.blockworld import draw
from cosmos3_serve.blockworld.asked import Asked, held_out
from cosmos3_serve.blockworld.files import decode
from cosmos3_serve.blockworld.scene import Event, Scene, Thing

CUBE, SPHERE = Scene((Thing(1, 0, 1, 1, 0),)), Scene((Thing(0, 2, 1, 1, 0),))
LEFT = Scene((Thing(0, 2, 1, 2, 0),), (Event(0, 0, to=0),))


def test_a_picture_is_judged_by_what_it_shows() -> None:
    asked = Asked("text2image", CUBE, 1)
    assert asked.prompt == "A large red cube in the centre at the front."
    assert asked.shown(draw.render(CUBE, 1, 256, 256)) is True and asked.fault(draw.render(CUBE, 1, 256, 256)) is None
    assert asked.fault(draw.render(SPHERE, 1, 256, 256)) == (
        "'A large red cube in the centre at the front.' was asked for, and the picture shows a blue sphere"
    )


def test_a_clip_is_judged_by_its_motion() -> None:
    asked = Asked("text2video", LEFT, 1)
    assert asked.fault(draw.render(LEFT, 9, 320, 192)) is None
    backwards = draw.render(LEFT, 9, 320, 192)[::-1]
    assert (asked.fault(backwards) or "").endswith("and the clip shows a blue sphere that slides to the right")


def test_no_rule_says_what_actions_must_show() -> None:
    asked = Asked("forward_dynamics", Scene((Thing(1, 4, 1, 0, 1),), gripper=0), 1)
    assert asked.prompt == "The gripper moves the purple cube."
    assert asked.shown(draw.render(CUBE, 9, 320, 192)) is None and asked.fault(draw.render(CUBE, 9, 320, 192)) is None


@pytest.mark.parametrize(("name", "frames"), [("a.jpg", 1), ("a.mp4", 9)])
def test_files_become_frames(tmp_path: Path, name: str, frames: int) -> None:
    write_scene(tmp_path / name, LEFT)
    assert decode(tmp_path / name).shape == (frames, 192, 320, 3)


def test_a_seed_is_always_the_same_held_out_scene() -> None:
    asked = [held_out(seed, moving=moving) for seed in range(20) for moving in (False, True)]
    assert asked == [held_out(seed, moving=moving) for seed in range(20) for moving in (False, True)]
    assert all(it.scene.held_out and bool(it.scene.events) is (it.mode == "text2video") for it in asked)
    assert len({it.prompt for it in asked}) > 30
