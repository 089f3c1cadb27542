import json

import pytest

from cosmos3_serve.contract.profile import FRAMEWORK_PROFILE, diffusers_profile
from cosmos3_serve.contract.resolve import negative_text, prompt_text, resolve_sample
from cosmos3_serve.contract.sample import SampleOverrides

DIFFUSERS = diffusers_profile("0.42.1")


def resolved(profile=DIFFUSERS, **fields):
    return resolve_sample(SampleOverrides(name="a", **fields), profile, seed=1)


def test_image_prompt_as_the_framework_made_it():
    sample = resolved(prompt="a a1", model_mode="text2image", resolution="256")
    assert prompt_text(sample) == "a a1. This image is of 256x256 resolution."
    assert negative_text(sample) == "This image is of 256x256 resolution."


@pytest.mark.parametrize("prompt", ["a robot", " a robot. ", "a robot...", "a robot.\n"])
def test_video_prompt_says_duration_then_size(prompt):
    sample = resolved(prompt=prompt, num_frames=49, resolution="480")
    assert prompt_text(sample) == (
        "a robot. The video is 2.0 seconds long and is of 24 FPS. This video is of 480x832 resolution."
    )


def test_templates_of_the_client():
    sample = resolved(
        prompt="x", num_frames=25, duration_template="{fps:d} fps", resolution_template="{width} by {height}", fps=10
    )
    assert prompt_text(sample) == "x. 10 fps. 1280 by 720"


def test_empty_prompt_takes_the_sentence_alone():
    assert prompt_text(resolved(num_frames=1)) == "This image is of 960x960 resolution."


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "bad. The video is 1.0 seconds long and is of 25 FPS. This video is of 192x320 resolution."),
        (
            {"negative_metadata_mode": "inverse"},
            "bad. The video is not 1.0 seconds long and is not of 25 FPS. This video is not of 192x320 resolution.",
        ),
        ({"negative_metadata_mode": "none", "negative_prompt_keep_metadata": False}, "bad"),
        (
            {"negative_metadata_mode": "none"},  # promoted to `same` while the metadata is kept
            "bad. The video is 1.0 seconds long and is of 25 FPS. This video is of 192x320 resolution.",
        ),
    ],
)
def test_negative_metadata_modes(fields, text):
    sample = resolved(prompt="x", negative_prompt="..bad.", num_frames=25, fps=25, resolution="256", **fields)
    assert negative_text(sample).rstrip(".") == text.rstrip(".")


def test_inverse_says_the_duration_even_of_an_image():
    sample = resolved(prompt="x", num_frames=1, negative_metadata_mode="inverse", resolution="256")
    assert negative_text(sample) == (
        "The video is not 0.0 seconds long and is not of 24 FPS. This video is not of 256x256 resolution."
    )


def test_negative_of_nothing_is_empty():
    sample = resolved(prompt="x", num_frames=1, negative_metadata_mode="none", negative_prompt_keep_metadata=False)
    assert negative_text(sample) == ""


def test_json_prompt_gets_the_metadata_as_fields():
    prompt = json.dumps({"scene": "日本", "duration": "99s", "aspect_ratio": "old"})
    made = prompt_text(resolved(prompt=prompt, num_frames=61, resolution="256"))
    assert made.isascii()
    assert json.loads(made) == {
        "scene": "日本",
        "duration": "2s",
        "aspect_ratio": "16,9",
        "fps": 24.0,
        "resolution": {"H": 192, "W": 320},
    }


def test_json_prompt_of_an_image_loses_duration_and_fps():
    prompt = json.dumps({"duration": "9s", "fps": 3})
    made = json.loads(prompt_text(resolved(prompt=prompt, num_frames=1, resolution="256")))
    assert made == {"resolution": {"H": 256, "W": 256}, "aspect_ratio": "1,1"}


@pytest.mark.parametrize("prompt", ["{not json", "[1]", '"text"', pytest.param('{"a":' * 10_000, id="deep")])
def test_other_json_is_plain_text(prompt):
    assert prompt_text(resolved(prompt=prompt, num_frames=1)).startswith(prompt)


def test_native_upsampling_leaves_the_prompt_alone():
    sample = resolved(FRAMEWORK_PROFILE, prompt=" as is ", prompt_upsampling=True)
    assert prompt_text(sample) == " as is "


def test_hints_are_emphasized_unless_asked_not_to():
    hints = {"edge": {"control_path": "s3://b/e.mp4"}, "depth": {"control_path": "s3://b/d.mp4"}}
    text = prompt_text(resolved(prompt="x", **hints))
    assert "Follow the edge, depth control video precisely" in text
    assert text.endswith("resolution." + text[text.index(" Follow") :])  # behind everything else, as upstream
    assert text.endswith("align with the edge, depth signal at every frame.")
    assert prompt_text(resolved(prompt="{}", **hints)).endswith("align with the edge, depth signal at every frame.")
    assert "Follow" not in prompt_text(resolved(prompt="x", emphasize_control_in_prompt=False, **hints))


def test_size_and_frames_that_the_media_decided():
    sample = resolved(prompt="x", edge={"control_path": "s3://b/e.mp4"}, emphasize_control_in_prompt=False)
    assert prompt_text(sample, size=(64, 32), num_frames=48) == (
        "x. The video is 2.0 seconds long and is of 24 FPS. This video is of 32x64 resolution."
    )
