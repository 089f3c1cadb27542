"""Scenes: the same from the same seed, objects apart, held-out ones kept from training."""

import random

from cosmos3_serve.blockworld.scene import sample_grasp, sample_scene


def test_a_seed_gives_one_scene_and_another_seed_another() -> None:
    one, same, other = (sample_scene(random.Random(seed), moving=True) for seed in (4, 4, 5))
    assert one == same
    assert one != other


def test_no_object_stands_in_or_slides_through_the_column_of_another() -> None:
    rng = random.Random(0)
    for _ in range(300):
        scene = sample_scene(rng, moving=True)
        columns = [thing.column for thing in scene.things]
        assert len(set(columns)) == len(columns)
        assert len({thing.name for thing in scene.things}) == len(columns)
        for event in scene.events:
            if event.motion == 0:
                own = scene.things[event.thing].column
                passed = range(min(own, event.to), max(own, event.to) + 1)
                assert not [c for c in columns if c != own and c in passed]


def test_held_out_scenes_are_never_drawn_for_training() -> None:
    rng = random.Random(1)
    trained = {sample_scene(rng, moving=False, held_out=False).key for _ in range(400)}
    kept = {sample_scene(rng, moving=False, held_out=True).key for _ in range(40)}
    assert not trained & kept


def test_a_gripper_holds_one_of_the_objects() -> None:
    rng = random.Random(2)
    for _ in range(50):
        scene = sample_grasp(rng)
        assert 0 <= scene.gripper < len(scene.things) <= 2
