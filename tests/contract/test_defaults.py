"""Custom defaults: what an operator may set, how it is checked, what it changes in a resolved sample."""

import json
from typing import Any

import pytest

from cosmos3_serve.contract.defaults import (
    CUSTOMIZABLE,
    defaults_sha256,
    parse_custom_defaults,
    require_explicit,
)
from cosmos3_serve.contract.modes import ModelMode
from cosmos3_serve.contract.profile import diffusers_profile
from cosmos3_serve.contract.resolve import resolve_sample
from cosmos3_serve.contract.sample import FIELD_NAMES, SampleOverrides
from cosmos3_serve.errors import UsageError, ValidationFailed

DEFAULTS = {"text2image": {"num_steps": 12, "num_frames": 5}, "text2video": {"num_steps": 8, "resolution": "256"}}


def resolve(defaults: dict[str, Any], **fields: Any) -> Any:
    profile = diffusers_profile("0").model_copy(update={"custom_defaults": parse_custom_defaults(defaults)})
    return resolve_sample(SampleOverrides(name="a", **fields), profile, seed=1)


def test_they_stand_in_place_of_the_frameworks_and_under_what_a_sample_says() -> None:
    sample = resolve(DEFAULTS, model_mode="text2video")
    assert (sample.num_steps, sample.resolution, sample.num_frames) == (8, "256", 189)
    assert resolve(DEFAULTS, model_mode="text2video", num_steps=3).num_steps == 3
    assert resolve(DEFAULTS, model_mode="text2video", edge={"control_path": "s3://b/c.mp4"}).num_steps == 8


def test_a_default_frame_count_changes_what_an_image_mode_makes() -> None:
    """Why a client that knows only the framework's defaults cannot bind the answer."""
    assert resolve(DEFAULTS, model_mode="text2image").num_frames == 5
    assert resolve(DEFAULTS, model_mode="text2image", num_frames=1).num_frames == 1
    assert resolve({"text2video": {"fps": 10}}, model_mode="text2image").num_frames == 1


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ([], ""),
        ({}, ""),
        ({"text2song": {"num_steps": 1}}, "text2song"),
        ({"text2image": 5}, "text2image"),
        ({"text2image": {}}, "text2image"),
        ({"text2image": {"prompt": "x"}}, "text2image.prompt"),
        ({"text2image": {"output_dir": "/x"}}, "text2image.output_dir"),
        ({"text2image": {"vision_path": "s3://b/x.png"}}, "text2image.vision_path"),
        ({"text2image": {"num_steps": 0}}, "text2image.num_steps"),
        ({"text2image": {"resolution": 256}}, "text2image.resolution"),
    ],
)
def test_what_can_have_no_default_is_named(given: Any, field: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_custom_defaults(given)
    assert refused.value.stable_code == "invalid_defaults"
    assert [error.field for error in refused.value.errors] == [field] and refused.value.remedy


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(UsageError) as refused:
        parse_custom_defaults({"a": {}, "text2video": {"num_steps": 0, "name": "x"}})
    assert len(refused.value.errors) == 3


def test_the_hash_is_of_the_content_alone() -> None:
    mixed = json.loads(json.dumps(dict(reversed(DEFAULTS.items()))))
    assert defaults_sha256(parse_custom_defaults(DEFAULTS)) == defaults_sha256(parse_custom_defaults(mixed))
    assert defaults_sha256({}) is None
    assert defaults_sha256(parse_custom_defaults({"text2image": {"fps": 9}})) != defaults_sha256(
        parse_custom_defaults(DEFAULTS)
    )


def test_only_sample_fields_can_be_customized_and_none_that_names_a_file() -> None:
    assert set(FIELD_NAMES) >= CUSTOMIZABLE
    assert not [name for name in CUSTOMIZABLE if name.endswith(("_path", "_file", "_dir"))]


def test_explicit_means_both_fields_in_every_sample() -> None:
    whole = {"model_mode": ModelMode.TEXT2IMAGE, "num_frames": 1}
    require_explicit([whole, whole])
    with pytest.raises(ValidationFailed) as refused:
        require_explicit([whole, {}, whole | {"num_frames": None}])
    assert [error.field for error in refused.value.errors] == [
        *("samples[1].model_mode", "samples[1].num_frames", "samples[2].num_frames")
    ]
