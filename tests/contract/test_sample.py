import pytest
from pydantic import ValidationError

from cosmos3_serve.contract import limits
from cosmos3_serve.contract.findings import from_validation
from cosmos3_serve.contract.sample import FIELD_NAMES, SampleOverrides

# The pinned framework's fields, table by table.
TABLES = {
    "1a": "name output_dir model extra num_outputs seed tensors_file pickle_file defaults_file",
    "1b": "num_steps guidance guidance_interval normalize_cfg shift sigma_max",
    "1c": "model_mode prompt prompt_path negative_prompt duration_template resolution_template"
    " inverse_duration_template inverse_resolution_template negative_metadata_mode negative_prompt_keep_metadata",
    "1d": "vision_path condition_frame_indexes_vision condition_video_keep resolution aspect_ratio fps num_frames"
    " video_save_quality image_save_quality",
    "1e": "enable_sound sound_path",
    "1f": "action_path domain_name image_size action_chunk_size raw_action_dim view_point",
    "1g": "max_new_tokens do_sample temperature top_k top_p repetition_penalty presence_penalty video_fps",
    "1h": "edge blur depth seg wsm control_guidance control_guidance_interval negative_prompt_file"
    " num_video_frames_per_chunk num_conditional_frames max_frames show_control_condition show_input"
    " num_first_chunk_conditional_frames share_vision_temporal_positions emphasize_control_in_prompt",
    "1i": "prompt_upsampling prompt_upsampler_max_tokens prompt_upsampler_temperature prompt_upsampler_top_p"
    " prompt_upsampler_top_k prompt_upsampler_repetition_penalty prompt_upsampler_presence_penalty"
    " prompt_upsampler_seed",
}


def test_exactly_the_74_fields_of_the_tables():
    names = [name for table in TABLES.values() for name in table.split()]
    assert len(names) == 74
    assert set(names) == set(FIELD_NAMES)


def test_every_field_may_be_absent_or_null():
    assert SampleOverrides().given() == {}
    assert SampleOverrides.model_validate(dict.fromkeys(FIELD_NAMES)).given() == {}


def value_of(field, value):
    return getattr(SampleOverrides.model_validate({field: value}), field)


@pytest.mark.parametrize(
    ("field", "sent", "kept"),
    [
        ("num_frames", "24", 24),
        ("num_frames", 24.0, 24),
        ("num_frames", "1.0", 1),
        ("num_frames", " 1 ", 1),
        ("seed", True, 1),
        ("seed", -5, -5),
        ("seed", 0, 0),
        ("normalize_cfg", "true", True),
        ("normalize_cfg", 1, True),
        ("enable_sound", "off", False),
        ("guidance", "3.5", 3.5),
        ("guidance", 0, 0.0),
        ("guidance", 7, 7.0),
        ("guidance_interval", [1, 0], (1.0, 0.0)),  # the order is not checked
        ("resolution", "256", "256"),
        ("aspect_ratio", "16,9", "16,9"),
        ("model_mode", "wam", "wam"),
        ("condition_video_keep", "last", "last"),
        ("negative_metadata_mode", "inverse", "inverse"),
        ("negative_prompt", "", ""),
        ("extra", {"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}),
        ("condition_frame_indexes_vision", [0, "1", -1], [0, 1, -1]),
        ("video_save_quality", 0, 0),
        ("image_save_quality", 100, 100),
        ("temperature", 100, 100.0),
        ("top_p", 1, 1.0),
        ("control_guidance", 10, 10.0),
        ("num_conditional_frames", 0, 0),
        ("prompt_upsampler_top_k", 0, 0),
        ("prompt_upsampler_presence_penalty", -1, -1.0),
        ("shift", -3, -3.0),
        ("prompt", "x" * limits.MAX_PROMPT_BYTES, "x" * limits.MAX_PROMPT_BYTES),
    ],
)
def test_lax_coercion(field, sent, kept):
    value = value_of(field, sent)
    assert value == kept
    assert type(value) is type(kept) or isinstance(value, type(kept))


@pytest.mark.parametrize(
    ("field", "sent"),
    [
        *((f, v) for f in ("num_frames", "num_steps", "num_outputs", "fps") for v in (0, -1, 24.5, "x", "", [1], {})),
        *((f, 0) for f in ("image_size", "action_chunk_size", "raw_action_dim", "max_new_tokens", "top_k")),
        *((f, 0) for f in ("temperature", "top_p", "repetition_penalty", "video_fps", "max_frames")),
        *((f, 0) for f in ("num_video_frames_per_chunk", "prompt_upsampler_max_tokens")),
        ("prompt_upsampler_repetition_penalty", 0),
        ("num_conditional_frames", -1),
        ("num_first_chunk_conditional_frames", -1),
        ("prompt_upsampler_top_k", -1),
        ("prompt_upsampler_temperature", -0.1),
        ("prompt_upsampler_top_p", 1.1),
        ("guidance", -0.1),
        ("guidance", 7.1),
        ("control_guidance", 10.1),
        ("control_guidance", -0.1),
        ("temperature", 100.1),
        ("top_p", 1.01),
        ("video_save_quality", 11),
        ("image_save_quality", 101),
        ("image_save_quality", -1),
        ("guidance_interval", [1]),
        ("guidance_interval", [1, 2, 3]),
        ("guidance_interval", [-1, 2]),
        ("control_guidance_interval", [0, -2]),
        ("resolution", 256),
        ("resolution", "704"),
        ("resolution", "512"),
        ("aspect_ratio", "16:9"),
        ("aspect_ratio", "21,9"),
        ("model_mode", "tex2image"),
        ("model_mode", 7),
        ("condition_video_keep", "middle"),
        ("negative_metadata_mode", "both"),
        ("prompt", 5),
        ("name", 5),
        ("extra", []),
        ("normalize_cfg", "maybe"),
        ("normalize_cfg", 2),
        ("edge", True),
        ("edge", []),
        ("edge", {"preset_edge_threshold": "none"}),
        ("blur", {"preset_blur_strength": "huge"}),
        ("depth", {"preset_edge_threshold": "low"}),
        ("edge", {"preset_blur_strength": "low"}),
        ("seg", {"weight": -1}),
        ("seg", {"control_path": 5}),
        *((f, v) for f in ("guidance", "shift", "sigma_max") for v in (float("nan"), float("inf"), "nan", "-inf")),
        ("guidance_interval", [0, float("inf")]),
        ("edge", {"weight": float("nan")}),
        # ours: bounds that upstream leaves open
        ("seed", 2**63),
        ("seed", -(2**63) - 1),
        ("num_frames", limits.MAX_NUM_FRAMES + 1),
        ("num_steps", limits.MAX_NUM_STEPS + 1),
        ("fps", limits.MAX_FPS + 1),
        ("condition_frame_indexes_vision", [0] * (limits.MAX_CONDITION_INDEXES + 1)),
        ("prompt", "x" * (limits.MAX_PROMPT_BYTES + 1)),
        ("prompt", "é" * (limits.MAX_PROMPT_BYTES // 2 + 1)),
        ("duration_template", "x" * (limits.MAX_TEMPLATE_CHARS + 1)),
        ("vision_path", "s3://b/" + "x" * limits.MAX_URI_CHARS),
    ],
)
def test_refused_values(field, sent):
    with pytest.raises(ValidationError):
        value_of(field, sent)


@pytest.mark.parametrize(
    ("sample", "field", "remedy"),
    [
        ({"num_step": 4}, "num_step", "did you mean num_steps?"),
        ({"promt": "x"}, "promt", "did you mean prompt?"),
        ({"zzz": 1}, "zzz", "remove it"),
        ({"edge": {"strength": 1}}, "edge.strength", "remove it"),
        ({"resolution": 720}, "resolution", "write one of them, as a string"),
        ({"guidance_interval": [0, "x"]}, "guidance_interval[1]", "write a number"),
    ],
)
def test_findings_name_field_and_remedy(sample, field, remedy):
    with pytest.raises(ValidationError) as caught:
        SampleOverrides.model_validate(sample)
    (finding,) = from_validation(caught.value, FIELD_NAMES)
    assert (finding.field, finding.remedy) == (field, remedy)


def test_hints_keep_upstreams_order_and_an_empty_object_activates():
    sample = SampleOverrides.model_validate({"wsm": {}, "edge": {}, "blur": None})
    assert list(sample.hints) == ["edge", "wsm"]
