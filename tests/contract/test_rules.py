"""Refusals that hold on every engine; the table's rows are requests that upstream fails late or never."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos3_serve.contract import defaults
from cosmos3_serve.contract.limits import MAX_TEMPLATE_CHARS
from cosmos3_serve.contract.profile import FRAMEWORK_PROFILE, diffusers_profile
from cosmos3_serve.contract.resolve import resolve_sample
from cosmos3_serve.contract.rules import (
    DURATION_FIELDS,
    RESOLUTION_FIELDS,
    TEMPLATE_FIELDS,
    check_placement,
    template_findings,
    template_problem,
)
from cosmos3_serve.contract.sample import SampleOverrides
from cosmos3_serve.errors import UsageError, ValidationFailed
from cosmos3_serve.settings import GeneratorSettings

MP4, PNG, WEBP = "s3://b/v.mp4", "s3://b/i.png", "s3://b/i.webp"
VIDEO_HINT, IMAGE_HINT = {"control_path": MP4}, {"control_path": PNG}
AV = {"domain_name": "av", "vision_path": PNG}
PROFILES = [FRAMEWORK_PROFILE, diffusers_profile("0.42.1")]

REFUSED = [
    ({"name": None}, "name"),
    ({"name": "a b"}, "name"),
    ({"num_outputs": 2}, "num_outputs"),
    ({"tensors_file": "x"}, "tensors_file"),
    ({"pickle_file": "x"}, "pickle_file"),
    ({"defaults_file": "x"}, "defaults_file"),
    ({"duration_template": "{duration.real}"}, "duration_template"),
    ({"inverse_duration_template": "{height}"}, "inverse_duration_template"),
    ({"resolution_template": "{0}"}, "resolution_template"),
    ({"inverse_resolution_template": "{height!r}"}, "inverse_resolution_template"),
    ({"vision_path": "s3://b/v.gif"}, "vision_path"),
    ({"vision_path": "s3://b/v.png?sig=1"}, "vision_path"),
    ({"vision_path": "s3://b/v"}, "vision_path"),
    ({"model_mode": "image2video", "vision_path": "s3://b/v.avi"}, "vision_path"),
    ({"vision_path": MP4, "num_frames": 1}, "num_frames"),
    # transfer fields without a hint
    ({"control_guidance": 2}, "control_guidance"),
    ({"control_guidance_interval": [0, 1]}, "control_guidance_interval"),
    ({"negative_prompt_file": "s3://b/n.txt"}, "negative_prompt_file"),
    ({"num_video_frames_per_chunk": 93}, "num_video_frames_per_chunk"),
    ({"num_conditional_frames": 1}, "num_conditional_frames"),
    ({"max_frames": 5000}, "max_frames"),
    ({"show_control_condition": False}, "show_control_condition"),
    ({"show_input": False}, "show_input"),
    ({"num_first_chunk_conditional_frames": 0}, "num_first_chunk_conditional_frames"),
    ({"share_vision_temporal_positions": True}, "share_vision_temporal_positions"),
    ({"emphasize_control_in_prompt": True}, "emphasize_control_in_prompt"),
    # hints without media
    ({"edge": {}}, "edge.control_path"),
    ({"blur": {}}, "blur.control_path"),
    ({"depth": {}}, "depth.control_path"),
    ({"depth": {}, "vision_path": MP4}, "depth.control_path"),
    ({"seg": {}, "vision_path": MP4}, "seg.control_path"),
    ({"wsm": {}, "vision_path": MP4}, "wsm.control_path"),
    ({"edge": {"control_path": "s3://b/c.webp"}, "num_frames": 1}, "edge.control_path"),
    ({"edge": {"control_path": "s3://b/c.txt"}}, "edge.control_path"),
    ({"edge": VIDEO_HINT, "vision_path": WEBP}, "vision_path"),
    # image control with a clip's frame count, and the reverse
    ({"edge": IMAGE_HINT}, "num_frames"),
    ({"edge": IMAGE_HINT, "num_frames": 5}, "num_frames"),
    ({"wsm": IMAGE_HINT, "model_mode": "text2image"}, "num_frames"),
    ({"edge": VIDEO_HINT, "num_frames": 1}, "num_frames"),
    ({"edge": VIDEO_HINT, "model_mode": "text2image"}, "num_frames"),
    ({"edge": VIDEO_HINT, "blur": IMAGE_HINT}, "num_frames"),
    ({"edge": VIDEO_HINT, "num_conditional_frames": 93}, "num_conditional_frames"),
    (
        {"edge": VIDEO_HINT, "num_video_frames_per_chunk": 5, "num_conditional_frames": 5},
        "num_conditional_frames",
    ),
    ({"edge": VIDEO_HINT, "num_first_chunk_conditional_frames": 1}, "num_first_chunk_conditional_frames"),
    ({"resolution": "1080"}, "resolution"),
    ({"resolution": "1080", "model_mode": "text2image", "num_frames": 2}, "resolution"),
    # action
    ({"model_mode": "wam", "domain_name": "av"}, "vision_path"),
    ({"model_mode": "forward_dynamics", **AV}, "action_path"),
    ({"model_mode": "wam", "vision_path": PNG}, "domain_name"),
    ({"model_mode": "wam", **AV, "domain_name": "libero"}, "domain_name"),
    ({"model_mode": "wam", **AV, "domain_name": "no_action"}, "domain_name"),
    ({"model_mode": "wam", **AV, "image_size": 300}, "image_size"),
    ({"model_mode": "wam", **AV, "num_frames": 1}, "num_frames"),
]


@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: p.engine)
@pytest.mark.parametrize(("fields", "field"), REFUSED)
def test_refused_on_every_engine(profile, fields, field):
    with pytest.raises(ValidationFailed) as caught:
        resolve_sample(SampleOverrides(**{"name": "a", **fields}), profile, seed=0)
    finding = next(item for item in caught.value.errors if item.field == field)
    assert finding.message
    assert finding.remedy
    assert caught.value.status == 422


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"model_mode": "audio_image2video", "vision_path": PNG}, "sound_path"),
        ({"model_mode": "reasoner"}, "prompt"),
        ({"model_mode": "reasoner", "prompt": "  \n"}, "prompt"),
        ({"edge": {}, "vision_path": PNG}, "num_frames"),  # computed from an image, default clip length
        ({"edge": {}, "vision_path": MP4, "num_frames": 1, "model_mode": "text2image"}, "num_frames"),
    ],
)
def test_refused_by_the_framework(fields, field):
    with pytest.raises(ValidationFailed) as caught:
        resolve_sample(SampleOverrides(name="a", **fields), FRAMEWORK_PROFILE, seed=0)
    assert [item.field for item in caught.value.errors] == [field]


@pytest.mark.parametrize(
    "fields",
    [
        {"resolution": "1080", "num_frames": 1},
        {"resolution": "768", "num_frames": 400},
        {"fps": 60, "num_frames": 5},
        {"num_outputs": 1},
        {"seed": -1},
        {"control_guidance": 1.0},
        {"edge": {}, "vision_path": MP4},
        {"edge": IMAGE_HINT, "num_frames": 1},
        {"edge": VIDEO_HINT},
        {"edge": {"control_path": "s3://b/c.MKV"}},
        {"edge": VIDEO_HINT, "negative_prompt_file": "s3://b/n.txt"},
        {"edge": VIDEO_HINT, "vision_path": PNG, "num_first_chunk_conditional_frames": 1},
        {"model_mode": "reasoner", "prompt_path": "s3://b/p.txt"},
        {"model_mode": "forward_dynamics", **AV, "action_path": "s3://b/a.json"},
        {"model_mode": "wam", **AV, "image_size": 2048, "action_chunk_size": 7},
        {"model_mode": "wam", **AV, "raw_action_dim": 3},  # accepted and ignored upstream
        {"prompt_upsampling": True, "prompt_upsampler_top_k": 3},
        {"normalize_cfg": True, "guidance_interval": [0, 5], "sigma_max": 3},
        {"model_mode": "text2video", "vision_path": PNG},
        {"max_new_tokens": 5},
    ],
)
def test_accepted_by_the_framework(fields):
    assert resolve_sample(SampleOverrides(name="a", **fields), FRAMEWORK_PROFILE, seed=0).name == "a"


def test_all_findings_at_once():
    fields = {"num_outputs": 3, "vision_path": "s3://b/x.gif", "max_frames": 3, "duration_template": "{x}"}
    with pytest.raises(ValidationFailed) as caught:
        resolve_sample(SampleOverrides(**fields), FRAMEWORK_PROFILE, seed=0)
    assert {e.field for e in caught.value.errors} == {"name", *fields}
    assert "(and 4 more)" in caught.value.detail


def test_the_defaults_pass():
    for field in TEMPLATE_FIELDS:
        text = getattr(defaults, field.upper(), defaults.IMAGE_RESOLUTION_TEMPLATE)
        assert template_problem(text, TEMPLATE_FIELDS[field]) is None


@pytest.mark.parametrize(
    ("template", "allowed"),
    [
        ("", DURATION_FIELDS),
        ("no fields {{literal}}", DURATION_FIELDS),
        ("{duration}", DURATION_FIELDS),
        ("{duration:.2f} {fps:d} {fps:>5}", DURATION_FIELDS),
        ("{height:04d}x{width}", RESOLUTION_FIELDS),
    ],
)
def test_plain_fields_pass(template, allowed):
    assert template_problem(template, allowed) is None


@pytest.mark.parametrize(
    "template",
    [
        "{duration.__class__}",
        "{duration.__class__.__mro__}",
        "{duration[0]}",
        "{0}",
        "{}",
        "{name}",
        "{height}",
        "{duration!r}",
        "{duration!s:.1f}",
        "{duration:999999999f}",
        "{duration:.999999f}",
        "{duration:{fps}}",
        "{duration:*>9}",
        "{duration:d}",  # a float: str.format would raise in the engine
        "{duration:s}",
        "{fps:,}",
        "{duration",
        "duration}",
        "{fps}" * 33,
    ],
)
def test_everything_else_is_refused(template):
    assert template_problem(template, DURATION_FIELDS)


@given(st.text(alphabet="{}duration.fpsheightw_[]!:0123456789<>^", max_size=60))
def test_what_passes_is_short_and_never_raises(template):
    for allowed in (DURATION_FIELDS, RESOLUTION_FIELDS):
        if template_problem(template, allowed) is None:
            values = dict.fromkeys(allowed, 12) | ({"duration": 0.1} if "duration" in allowed else {})
            assert len(template.format(**values)) <= MAX_TEMPLATE_CHARS + 128 * len(template)


def test_findings_name_the_field_and_what_is_allowed():
    (finding,) = template_findings({"resolution_template": "{duration}", "duration_template": "{fps}"})
    assert finding.field == "resolution_template"
    assert "{height} and {width}" in finding.remedy


def settings(engine: Any, **fields: Any) -> GeneratorSettings:
    return GeneratorSettings(engine=engine, **fields)


def test_throughput_over_several_gpus_is_refused_with_what_to_use() -> None:
    with pytest.raises(UsageError) as refused:
        check_placement(settings("framework", world_size=2))
    assert refused.value.stable_code == "parallelism"
    assert "--parallelism-preset latency" in refused.value.remedy and "--world-size 1" in refused.value.remedy


def test_the_diffusers_engine_has_one_device() -> None:
    with pytest.raises(UsageError) as refused:
        check_placement(settings("diffusers", world_size=2, parallelism_preset="latency"))
    assert refused.value.stable_code == "usage" and "one device" in refused.value.detail


@pytest.mark.parametrize("engine", ["diffusers", "framework", None])
def test_one_gpu_is_always_right(engine: str | None) -> None:
    check_placement(settings(engine))
    check_placement(settings("framework", world_size=8, parallelism_preset="latency"))
