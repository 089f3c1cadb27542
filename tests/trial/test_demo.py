"""The quickstart's samples: what they ask for is what the measures look for."""

import json
from pathlib import Path

import numpy as np
import pytest

from cosmos3_serve.contract.profile import diffusers_profile
from cosmos3_serve.trial import demo, quickstart, shown


def test_prompts_are_the_captions_of_their_scenes() -> None:
    texts = {sample["name"]: sample["prompt"] for sample in demo.batch("b")["samples"]}
    assert texts["slide"] == "A large red sphere on the left at the front. The red sphere slides to the right."
    assert texts["push"] == "The gripper moves the purple cube."
    assert list(texts) == list(demo.ASKED)
    assert demo.ASKED[quickstart.ASKED_ABOUT.split("/")[1]].mode == "text2video"


@pytest.mark.parametrize("name", [name for name, asked in demo.ASKED.items() if asked.mode != "forward_dynamics"])
def test_a_drawn_scene_shows_what_its_sample_asks_for_and_another_does_not(name: str) -> None:
    assert demo.shows(name, demo.scene(name)) is True
    assert demo.shows(name, demo.scene("push")) is False


def test_media_are_what_the_samples_name_and_decode(tmp_path: Path) -> None:
    files = demo.write_media(tmp_path)
    named = json.dumps(demo.batch("bucket"))
    for key in files:
        assert key.replace(" ", "%20").replace("+", "%2B") in named
    beginning = shown.decode(files[demo.BEGINNING])
    assert beginning.shape == (demo.GIVEN, demo.HEIGHT, demo.WIDTH, 3)
    actions = np.array(json.loads(files[demo.ACTIONS].read_text()))
    wide = diffusers_profile("0").supported_domains["pusht"]
    assert actions.shape == (demo.ACTION_STEPS, wide)


def test_questions_are_answered_by_what_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    demo._encode(path, demo.scene("fall"))
    assert shown.questions(path) == [
        ("What happens?", "The blue cube falls."),
        ("What does the blue cube do?", "it falls"),
    ]
    demo._encode(path, np.full((9, demo.HEIGHT, demo.WIDTH, 3), 128, np.uint8))
    assert [measured for _, measured in shown.questions(path)] == [None, None]


def test_two_motions_have_no_order_that_a_track_tells() -> None:
    class Track:
        colour, shape, motion = "red", "cube", "falls"

    assert shown.happens([Track(), Track()]) is None  # type: ignore[list-item]
