"""What one sample may cost is refused by its numbers, before anything is queued."""

import pytest

from cosmos3_serve.contract.budget import MAX_TOKENS, budget_findings, token_count
from cosmos3_serve.contract.profile import FRAMEWORK_PROFILE
from cosmos3_serve.contract.resolve import resolve_sample
from cosmos3_serve.contract.resolved import ResolvedSample
from cosmos3_serve.contract.sample import SampleOverrides
from cosmos3_serve.errors import ValidationFailed


def resolved(**fields: object) -> ResolvedSample:
    sample = SampleOverrides.model_validate({"name": "a", "prompt": "x", **fields})
    return resolve_sample(sample, FRAMEWORK_PROFILE, seed=1)


def test_the_default_video_is_far_below() -> None:
    default = resolved(model_mode="text2video")
    assert token_count((1280, 720), 189) == 44_160
    assert list(budget_findings(default)) == []
    assert list(budget_findings(resolved(model_mode="text2image"))) == []


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"model_mode": "text2video", "num_frames": 9_997, "resolution": "720"}, "num_frames"),
        ({"model_mode": "text2video", "num_frames": 189, "num_steps": 1000}, "num_steps"),
        (
            {"model_mode": "wam", "action_chunk_size": 10_000, "image_size": 480, "vision_path": "s3://b/a.png"},
            "action_chunk_size",
        ),
    ],
)
def test_what_no_machine_finishes_is_refused_by_number(fields: dict[str, object], field: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        resolved(**fields)
    found = caught.value.errors[0]
    assert found.field == field and "more than" in found.message and "at most" in found.remedy


def test_the_remedy_is_let_in() -> None:
    most = MAX_TOKENS // token_count((1280, 720), 1) * 4
    assert token_count((1280, 720), most) <= MAX_TOKENS < token_count((1280, 720), most + 4)


def test_a_clip_of_several_passes_counts_as_a_whole_once_its_length_is_known() -> None:
    sample = resolved(model_mode="text2video", num_frames=93, edge={"control_path": "s3://b/a.mp4"}, max_frames=5000)
    assert list(budget_findings(sample)) == []
    assert [found.field for found in budget_findings(sample, 5000)] == ["max_frames"]
