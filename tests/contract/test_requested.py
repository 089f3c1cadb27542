import pytest

from cosmos3_serve.contract.profile import FRAMEWORK_PROFILE, diffusers_profile
from cosmos3_serve.contract.requested import expected_frames, expected_size, requested
from cosmos3_serve.contract.resolve import resolve_sample
from cosmos3_serve.contract.sample import SampleOverrides


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
