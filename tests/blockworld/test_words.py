"""Captions and questions: what is said is so, and has one answer."""

import random

from cosmos3_serve.blockworld import words
from cosmos3_serve.blockworld.scene import COLOURS, SHAPES, Event, Scene, Thing, sample_scene

CUBE, SPHERE = Thing(1, 0, 1, 0, 0), Thing(0, 2, 0, 2, 1)


def test_a_full_caption_says_everything() -> None:
    scene = Scene((CUBE, SPHERE), (Event(0, 0, to=1),))
    assert words.caption(scene, random.Random(0), full=True) == (
        "A large red cube on the left at the front and a small blue sphere on the right at the back."
        " The red cube slides to the right."
    )


def test_two_events_are_told_in_their_order() -> None:
    scene = Scene((CUBE, SPHERE), (Event(0, 1, 0.5, 1.0), Event(1, 2, 0.0, 0.5)))
    assert words.happens(scene) == "First the blue sphere bounces, then the red cube falls."
    turns = [turn for seed in range(8) for turn in words.questions(scene, random.Random(seed), video=True)]
    assert {t.answer for t in turns if t.question == "What moves first?"} == {"the blue sphere"}
    assert {t.answer for t in turns if t.question == "Does the red cube move before the blue sphere?"} == {"no"}


def test_every_caption_names_every_colour_and_shape() -> None:
    rng = random.Random(5)
    for _ in range(100):
        scene = sample_scene(rng, moving=True)
        said = words.caption(scene, rng)
        assert all(f"{COLOURS[t.colour]} {SHAPES[t.shape]}" in said for t in scene.things)


def test_a_question_has_the_same_answer_whenever_it_is_asked() -> None:
    rng = random.Random(6)
    for _ in range(60):
        scene = sample_scene(rng, moving=True)
        known: dict[str, str] = {}
        for _ in range(6):
            for turn in words.questions(scene, rng, video=True):
                assert known.setdefault(turn.question, turn.answer) == turn.answer


def test_a_picture_is_not_asked_about_motion() -> None:
    rng = random.Random(8)
    for _ in range(50):
        asked = words.questions(sample_scene(rng, moving=False), rng, video=False)
        assert not {t.kind for t in asked} & {"does", "happens", "order", "direction", "what_moves", "falls", "moves"}


def test_an_answer_agrees_but_for_case_and_full_stops() -> None:
    assert words.agrees(" The red sphere falls. ", "the red sphere falls")
    assert not words.agrees("The red sphere bounces.", "The red sphere falls.")
