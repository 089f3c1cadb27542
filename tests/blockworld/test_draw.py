"""Pictures: deterministic, of the asked size, the gripper and its object where the actions lead."""

import random

import numpy as np

from cosmos3_serve.blockworld import draw, measure
from cosmos3_serve.blockworld.scene import COLOURS, Scene, Thing, sample_scene


def test_a_scene_is_drawn_the_same_each_time() -> None:
    scene = sample_scene(random.Random(1), moving=True)
    one, same = draw.render(scene, 5, 320, 192), draw.render(scene, 5, 320, 192)
    assert one.shape == (5, 192, 320, 3)
    assert one.dtype == np.uint8
    assert np.array_equal(one, same)


def test_a_held_object_goes_where_the_gripper_goes() -> None:
    scene = Scene((Thing(shape=1, colour=0, size=1, column=0, depth=0),), gripper=0)
    path = draw.Path(((0.0, 0.0), (0.1, -0.1), (0.3, -0.2)))
    first, _, last = draw.render(scene, 3, 320, 192, path)
    (before,), (after,) = measure.objects(first), measure.objects(last)
    assert before.colour == after.colour == COLOURS[0]
    assert abs(after.x - before.x - 0.3) < 0.01
    assert abs(after.y - before.y + 0.2) < 0.02
