import pytest

from cosmos3_serve.contract.grouping import shape_key, wave_key
from cosmos3_serve.contract.profile import FRAMEWORK_PROFILE
from cosmos3_serve.contract.resolve import resolve_sample
from cosmos3_serve.contract.sample import SampleOverrides

MP4, PNG = "s3://b/v.mp4", "s3://b/i.png"
WAM = {"model_mode": "wam", "domain_name": "av", "vision_path": PNG}
ASK = {"model_mode": "reasoner", "prompt": "x"}


def keys(**fields):
    sample = resolve_sample(SampleOverrides(**{"name": "a", "prompt": "x", **fields}), FRAMEWORK_PROFILE, seed=1)
    return wave_key(sample), shape_key(sample)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"num_steps": 5}, {"num_steps": 6}),
        ({"guidance": 1}, {"guidance": 2}),
        ({"guidance_interval": [0, 1]}, {}),
        ({"shift": 3}, {"shift": 5}),
        ({"sigma_max": 10}, {}),
        ({"normalize_cfg": True}, {}),
        ({"num_frames": 1, "shift": 3, "num_steps": 5, "guidance": 1}, {"num_steps": 5, "shift": 3, "guidance": 1}),
        ({"vision_path": PNG}, {}),
        ({"prompt_upsampler_seed": 1}, {}),
        ({"prompt_upsampling": True}, {}),
        ({"enable_sound": True}, {}),
        (WAM, {**WAM, "model_mode": "inverse_dynamics"}),
        (WAM, {**WAM, "domain_name": "pusht"}),
        (ASK, {}),
        *(
            (ASK, {**ASK, **other})
            for other in (
                {"max_new_tokens": 5},
                {"do_sample": True},
                {"temperature": 0.5},
                {"top_k": 5},
                {"top_p": 0.5},
                {"repetition_penalty": 1.5},
                {"presence_penalty": 0.5},
                {"video_fps": 1},
                {"vision_path": PNG},
            )
        ),
        ({**ASK, "vision_path": PNG}, {**ASK, "vision_path": MP4}),
        ({**ASK, "do_sample": True, "seed": 1}, {**ASK, "do_sample": True, "seed": 2}),
    ],
)
def test_never_in_one_call(one, other):
    assert keys(**one)[0] != keys(**other)[0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"seed": 9, "prompt": "other", "negative_prompt": "z", "name": "b"}),
        ({"resolution": "256"}, {"aspect_ratio": "1,1", "num_frames": 49}),
        ({"vision_path": PNG}, {"vision_path": MP4}),
        ({"model_mode": "text2image"}, {"model_mode": "text2image", "resolution": "1080"}),
        ({**ASK, "seed": 1}, {**ASK, "seed": 2}),  # greedy: the seed does nothing
    ],
)
def test_may_share_a_call(one, other):
    assert keys(**one)[0] == keys(**other)[0]


def test_transfer_is_always_alone():
    hint = {"edge": {"control_path": MP4}}
    assert keys(**hint)[0] != keys(**hint)[0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"resolution": "256"}),
        ({}, {"aspect_ratio": "9,16"}),
        ({}, {"num_frames": 49}),
        ({}, {"num_steps": 9}),
        ({}, {"guidance": 1}),
        (WAM, {**WAM, "action_chunk_size": 4}),
        (WAM, {**WAM, "image_size": 1280}),
        ({**WAM, "image_size": 2048}, {**WAM, "image_size": 1280}),
        (ASK, {**ASK, "max_new_tokens": 5}),
        ({"edge": {"control_path": MP4}}, {"blur": {"control_path": MP4}}),
        ({"edge": {"control_path": MP4}}, {"edge": {"control_path": MP4}, "max_frames": 93}),
    ],
)
def test_shapes_that_differ(one, other):
    assert keys(**one)[1] != keys(**other)[1]


def test_shapes_that_do_not():
    assert keys()[1] == keys(seed=4, prompt="y", guidance=2, shift=3, fps=10)[1]
    assert hash(keys()[1]) == hash(keys()[1])
