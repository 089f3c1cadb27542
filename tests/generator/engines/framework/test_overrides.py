"""Overrides: what upstream gets to see, and what it never does."""

from typing import Any

import pytest

from cosmos3_serve.contract.profile import FRAMEWORK_PROFILE
from cosmos3_serve.contract.resolve import resolve_sample
from cosmos3_serve.contract.sample import FIELD_NAMES, SampleOverrides
from cosmos3_serve.errors import SampleCode, SampleError
from cosmos3_serve.generator.engines.framework.overrides import NEVER, override_fields


def args(**fields: Any) -> dict[str, Any]:
    sample = SampleOverrides.model_validate({"name": "a", "prompt": "p"} | fields)
    return resolve_sample(sample, FRAMEWORK_PROFILE, seed=7).model_dump(mode="json")


def test_a_picture_says_everything_that_was_resolved() -> None:
    fields = override_fields(args(num_frames=1, num_steps=3), "/out/b/a")
    assert fields["output_dir"] == "/out/b/a"
    assert (fields["name"], fields["seed"], fields["model_mode"]) == ("a", 7, "text2image")
    assert (fields["num_steps"], fields["guidance"], fields["shift"], fields["resolution"]) == (3, 4.0, 3.0, "720")
    assert fields.keys() <= set(FIELD_NAMES), "upstream forbids unknown keys"
    assert None not in fields.values()


def test_the_long_negative_prompt_of_video_is_left_to_upstream() -> None:
    assert "negative_prompt" not in override_fields(args(), "/out/b/a")
    assert override_fields(args(negative_prompt=""), "/out/b/a")["negative_prompt"] == ""


def test_upsampling_has_its_own_name_on_the_way_in() -> None:
    fields = override_fields(args(prompt_upsampling=True), "/o")
    assert fields["prompt_upsampling"] is True and "native_prompt_upsampling" not in fields
    assert "prompt_upsampling" not in override_fields(args(), "/o")


def test_a_reasoner_sample_carries_none_of_the_inert_marks() -> None:
    fields = override_fields(args(model_mode="reasoner", max_new_tokens=5), "/o")
    assert fields["max_new_tokens"] == 5
    assert not fields.keys() & {"guidance", "num_steps", "fps", "shift", "sigma_max", "video_save_quality"}


def test_hints_lose_their_nulls_only() -> None:
    fields = override_fields(args(edge={"control_path": "s3://b/x.mp4"}) | {"edge": {
        "control_path": "/out/inputs/0.mp4", "weight": 1.0, "preset_edge_threshold": "medium"}}, "/o")  # fmt: skip
    assert fields["edge"] == {"control_path": "/out/inputs/0.mp4", "weight": 1.0, "preset_edge_threshold": "medium"}
    assert "blur" not in fields


@pytest.mark.parametrize("name", NEVER)
def test_what_upstream_would_open_or_unpickle_is_refused(name: str) -> None:
    with pytest.raises(SampleError) as refused:
        override_fields(args() | {name: "/etc/passwd"}, "/o")
    assert refused.value.sample_code is SampleCode.INPUT_INVALID
    assert "/etc" not in refused.value.detail


@pytest.mark.parametrize(
    "path", ["s3://b/k.png", "https://huggingface.co/x.png", "relative.png", "/out/../etc/x.png", 7, ""]
)
@pytest.mark.parametrize("name", ["vision_path", "sound_path", "action_path", "edge"])
def test_only_staged_files_reach_upstream(name: str, path: Any) -> None:
    value = {"control_path": path, "weight": 1.0} if name == "edge" else path
    with pytest.raises(SampleError, match="is no staged input"):
        override_fields(args() | {name: value}, "/o")


@pytest.mark.parametrize("name", ["name", "seed"])
def test_name_and_seed_are_always_said(name: str) -> None:
    with pytest.raises(SampleError, match="is missing"):
        override_fields(args() | {name: None}, "/o")
