"""What the diffusers engine refuses by name; the framework engine takes each of these."""

import pytest

from cosmos3_serve.contract.profile import (
    DIFFUSERS_DOMAINS,
    DIFFUSERS_FIELDS,
    FRAMEWORK_PROFILE,
    EngineProfile,
    diffusers_profile,
)
from cosmos3_serve.contract.resolve import resolve_sample
from cosmos3_serve.contract.sample import FIELD_NAMES, SampleOverrides
from cosmos3_serve.errors import ModeNotSupported, ValidationFailed

DIFFUSERS = diffusers_profile("0.42.1")
MP4, PNG = "s3://b/v.mp4", "s3://b/i.png"
EDGE = {"control_path": MP4}
WAM = {"model_mode": "wam", "domain_name": "av", "vision_path": PNG}


def findings(profile: EngineProfile = DIFFUSERS, **fields):
    with pytest.raises(ValidationFailed) as caught:
        resolve_sample(SampleOverrides(name="a", **fields), profile, seed=0)
    assert all(item.message and item.remedy for item in caught.value.errors)
    return caught.value.errors


def test_profiles_say_who_they_are():
    assert (DIFFUSERS.revision, DIFFUSERS.backend) == ("diffusers-0.42.1", "diffusers-ray-serve")
    assert FRAMEWORK_PROFILE.backend == "cosmos-framework-native-ray-serve"
    assert len(FRAMEWORK_PROFILE.revision) == 40
    assert set(FIELD_NAMES) >= DIFFUSERS_FIELDS


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        ({"model_mode": "image2image", "vision_path": PNG}, "image2video"),
        ({"vision_path": PNG, "num_frames": 1}, "image2video"),  # implicit image2image
        ({"model_mode": "audio_image2video", "vision_path": PNG, "sound_path": "s3://b/s.wav"}, "sound"),
        ({"model_mode": "reasoner", "prompt": "x"}, "/v1/chat/completions"),
        ({"model_mode": "reasoner", "prompt": "x", "vision_path": MP4}, "reasoner service"),
    ],
)
def test_modes_refused_by_name(fields, advice):
    with pytest.raises(ModeNotSupported) as caught:
        resolve_sample(SampleOverrides(name="a", **fields), DIFFUSERS, seed=0)
    assert caught.value.stable_code == "mode_not_supported"
    assert "diffusers engine" in caught.value.detail
    assert advice in caught.value.remedy
    assert caught.value.errors[0].field == "model_mode"


def test_libero_is_refused_by_name():
    (finding,) = findings(**{**WAM, "domain_name": "libero"})
    assert "'libero'" in finding.message
    assert "width" in finding.remedy


# Every field that the engine does not act on, with a value that would change something.
UNHONOURED = {
    "sigma_max": 10,
    "enable_sound": True,
    "sound_path": "s3://b/s.wav",
    "raw_action_dim": 3,
    "max_new_tokens": 5,
    "do_sample": True,
    "temperature": 0.5,
    "top_k": 5,
    "top_p": 0.5,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.5,
    "video_fps": 1,
    "prompt_upsampling": True,
    "prompt_upsampler_max_tokens": 5,
    "prompt_upsampler_temperature": 0,
    "prompt_upsampler_top_p": 1,
    "prompt_upsampler_top_k": 1,
    "prompt_upsampler_repetition_penalty": 2,
    "prompt_upsampler_presence_penalty": 0,
    "prompt_upsampler_seed": 1,
}
SERVER_OWNED = {"output_dir", "defaults_file", "tensors_file", "pickle_file"}


def test_every_field_is_honoured_or_refused():
    assert set(FIELD_NAMES) == DIFFUSERS_FIELDS | set(UNHONOURED) | SERVER_OWNED


@pytest.mark.parametrize("field", UNHONOURED)
def test_nothing_is_silently_ignored(field):
    hint = {"edge": EDGE} if field.startswith(("show", "share")) else {}
    assert [item.field for item in findings(**{field: UNHONOURED[field]}, **hint)] == [field]


@pytest.mark.parametrize(
    "fields",
    [
        {"normalize_cfg": False, "sigma_max": 80, "enable_sound": False, "prompt_upsampling": False},
        {"prompt_upsampler_seed": 3407, "prompt_upsampler_top_k": 20},
        {"edge": EDGE, "show_input": False, "share_vision_temporal_positions": True},
        {**WAM, "raw_action_dim": 9},
    ],
)
def test_saying_the_default_is_fine(fields):
    assert resolve_sample(SampleOverrides(name="a", **fields), DIFFUSERS, seed=0)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        # an input that the mode does not read
        ({"model_mode": "text2image", "vision_path": PNG}, "vision_path"),
        ({"model_mode": "text2video", "vision_path": MP4}, "vision_path"),
        ({"model_mode": "image2video", "vision_path": MP4}, "vision_path"),
        ({"model_mode": "video2video", "vision_path": PNG}, "vision_path"),
        ({"model_mode": "video2video"}, "vision_path"),
        ({"action_path": "s3://b/a.json"}, "action_path"),
        ({**WAM, "action_path": "s3://b/a.json"}, "action_path"),
        ({"prompt": "x", "prompt_path": "s3://b/p.txt"}, "prompt_path"),
        (
            {"edge": EDGE, "negative_prompt": "x", "negative_prompt_file": "s3://b/n.txt"},
            "negative_prompt_file",
        ),
        ({"condition_frame_indexes_vision": [0]}, "condition_frame_indexes_vision"),
        # conditioning that cannot work
        ({"model_mode": "image2video", "vision_path": PNG, "num_frames": 1}, "num_frames"),
        ({"model_mode": "video2video", "vision_path": MP4, "num_frames": 1}, "num_frames"),
        ({"vision_path": MP4, "num_frames": 5}, "num_frames"),
        ({"vision_path": MP4, "condition_frame_indexes_vision": []}, "condition_frame_indexes_vision"),
        ({"vision_path": MP4, "condition_frame_indexes_vision": [-1]}, "condition_frame_indexes_vision"),
        (
            {"vision_path": MP4, "num_frames": 9, "condition_frame_indexes_vision": [3]},
            "condition_frame_indexes_vision",
        ),
        ({"vision_path": PNG, "condition_frame_indexes_vision": [0, 1]}, "condition_frame_indexes_vision"),
        # sizes and actions
        ({"resolution": "1080", "num_frames": 1, "aspect_ratio": "16,9"}, "aspect_ratio"),
        ({**WAM, "domain_name": "robomind_franka"}, "domain_name"),
        ({**WAM, "image_size": 1080}, "image_size"),
        ({**WAM, "action_chunk_size": 6}, "action_chunk_size"),
        ({**WAM, "view_point": "bird_view"}, "view_point"),
        ({**WAM, "raw_action_dim": 3}, "raw_action_dim"),
        ({**WAM, "num_frames": 49}, "num_frames"),
        ({**WAM, "condition_frame_indexes_vision": [0]}, "condition_frame_indexes_vision"),
        ({**WAM, "model_mode": "inverse_dynamics"}, "vision_path"),
        # transfer
        ({"edge": {}, "vision_path": MP4}, "edge.control_path"),
        ({"edge": EDGE, "vision_path": MP4}, "vision_path"),
        ({"edge": {**EDGE, "preset_edge_threshold": "low"}}, "edge.preset_edge_threshold"),
        ({"blur": {**EDGE, "preset_blur_strength": "none"}}, "blur.preset_blur_strength"),
        ({**WAM, "edge": EDGE}, "model_mode"),
    ],
)
def test_refused_on_diffusers(fields, field):
    assert field in [item.field for item in findings(**fields)]


@pytest.mark.parametrize(
    "fields",
    [
        {"model_mode": "image2video"},  # without an image: unconditioned, as upstream
        {"vision_path": PNG, "num_frames": 5},
        {"vision_path": MP4, "num_frames": 9},
        {"vision_path": MP4, "num_frames": 5, "condition_frame_indexes_vision": [0]},
        {"resolution": "1080", "num_frames": 1},
        {"edge": {**EDGE, "weight": 2}},
        {"edge": {**EDGE, "weight": 2}, "blur": {**EDGE, "weight": 1}},
        {"edge": EDGE, "vision_path": MP4, "show_input": True},
        {"edge": EDGE, "vision_path": MP4, "num_first_chunk_conditional_frames": 1},
        {"edge": {"control_path": PNG}, "num_frames": 1},
        {**WAM, "num_frames": 17},
        {"model_mode": "inverse_dynamics", "domain_name": "av", "vision_path": MP4},
        {"model_mode": "forward_dynamics", "domain_name": "av", "vision_path": MP4, "action_path": "s3://b/a.json"},
        *({**WAM, "domain_name": domain} for domain in DIFFUSERS_DOMAINS),
    ],
)
def test_accepted_on_diffusers(fields):
    assert resolve_sample(SampleOverrides(name="a", **fields), DIFFUSERS, seed=0)


def test_an_engine_without_transfer_refuses_hints():
    profile = DIFFUSERS.model_copy(update={"transfer": "none"})
    (finding,) = findings(profile, edge=EDGE)
    assert (finding.field, finding.remedy) == ("edge", "remove the hints")


def test_an_engine_without_sound_refuses_it():
    profile = FRAMEWORK_PROFILE.model_copy(update={"sound": False})
    audio = {"model_mode": "audio_image2video", "vision_path": PNG, "sound_path": "s3://b/s.wav"}
    assert [item.field for item in findings(profile, **audio)] == ["model_mode"]
    assert [item.field for item in findings(profile, enable_sound=True)] == ["enable_sound"]
    assert resolve_sample(SampleOverrides(name="a", enable_sound=False), profile, seed=0)


def test_close_domain_is_suggested():
    (finding,) = findings(**{**WAM, "domain_name": "robomind_franka"})
    assert finding.remedy == "did you mean robomind-franka?"
