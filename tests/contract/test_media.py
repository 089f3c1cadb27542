import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos3_serve.contract.media import (
    SIZES,
    AspectRatio,
    Resolution,
    expected_frames,
    expected_size,
    latent_frames,
    requested,
    round_frames,
    size_of,
)
from cosmos3_serve.contract.profile import FRAMEWORK_PROFILE, diffusers_profile
from cosmos3_serve.contract.resolve import resolve_sample
from cosmos3_serve.contract.sample import SampleOverrides


@pytest.mark.parametrize(
    ("frames", "rounded"), [(1, 1), (2, 5), (5, 5), (6, 9), (9, 9), (24, 25), (100, 101), (189, 189)]
)
def test_frames_round_up(frames, rounded):
    assert round_frames(frames) == rounded


@given(st.integers(1, 10**6))
def test_rounding_gives_the_next_4k_plus_1(frames):
    rounded = round_frames(frames)
    assert rounded % 4 == 1
    assert frames <= rounded < frames + 4
    assert round_frames(rounded) == rounded
    assert latent_frames(rounded) * 4 - 3 == rounded


def test_every_wire_resolution_and_ratio_has_a_size():
    for resolution in Resolution:
        for ratio in AspectRatio:
            width, height = size_of(resolution, ratio)
            across, down = map(int, ratio.split(","))
            assert width % 8 == height % 8 == 0
            assert (width > height) == (across > down)


@pytest.mark.parametrize(
    ("resolution", "ratio", "size"),
    [
        ("256", "16,9", (320, 192)),
        ("720", "16,9", (1280, 720)),
        ("720", "1,1", (960, 960)),
        ("704", "4,3", (1088, 832)),
        ("1080", "9,16", (1080, 1920)),
        (None, "1,1", None),
        ("256", None, None),
        ("512", "1,1", None),
    ],
)
def test_table(resolution, ratio, size):
    assert size_of(resolution, ratio) == size


def test_portrait_is_landscape_turned():
    for sizes in SIZES.values():
        assert sizes["16,9"] == sizes["9,16"][::-1]
        assert sizes["4,3"] == sizes["3,4"][::-1]


def test_a_prepared_sample_promises():
    promise = requested({"name": "a", "vision_path": "s3://b/i.PNG", "num_frames": 1, "seed": 3, "edge": {}})
    assert (promise.mode, promise.seed, promise.hints, promise.is_image) == ("image2image", 3, {"edge"}, True)
    assert not promise.is_text
    assert requested({"name": "a", "model_mode": "reasoner"}).is_text
    assert not requested({"name": "a", "model_mode": "reasoner", "wsm": {}}).is_text
    with pytest.raises(ValueError, match="extension"):
        requested({"name": "a", "vision_path": "s3://b/i.gif"})


PNG = "s3://b/i.png"


@pytest.mark.parametrize(
    ("profile", "fields", "frames", "size"),
    [
        (FRAMEWORK_PROFILE, {"num_frames": 1}, 1, (960, 960)),
        (FRAMEWORK_PROFILE, {"num_frames": 6, "resolution": "256"}, 9, (320, 192)),
        (FRAMEWORK_PROFILE, {"vision_path": PNG, "num_frames": 1}, 1, None),
        (FRAMEWORK_PROFILE, {"edge": {"control_path": "s3://b/c.mp4"}}, None, (1280, 720)),
        (FRAMEWORK_PROFILE, {"edge": {"control_path": PNG}, "num_frames": 1}, 1, (960, 960)),
        # upstream echoes 189 for action, whatever the chunk
        (FRAMEWORK_PROFILE, {"model_mode": "wam", "domain_name": "av", "vision_path": PNG}, 17, None),
        (diffusers_profile("1"), {"model_mode": "wam", "domain_name": "av", "vision_path": PNG}, 17, None),
    ],
)
def test_what_the_media_must_show(profile, fields, frames, size):
    args = resolve_sample(SampleOverrides(name="a", **fields), profile, seed=0).model_dump(mode="json")
    assert (expected_frames(args), expected_size(args)) == (frames, size)


def test_foreign_args_promise_nothing():
    assert expected_frames({}) is None
    assert expected_frames({"num_frames": "9"}) is None
    assert expected_size({"resolution": 256, "aspect_ratio": "1,1"}) is None
