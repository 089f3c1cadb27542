"""OpenAI's `video` object from a batch of one sample, and what its client makes of it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from openai.types import ImagesResponse, Video

from cosmos3_serve.contract.openai_answers import image_answer, video_object
from cosmos3_serve.contract.profile import diffusers_profile
from cosmos3_serve.contract.records import SampleState
from cosmos3_serve.contract.resolve import resolve_sample
from cosmos3_serve.contract.sample import SampleOverrides
from cosmos3_serve.contract.views import BatchState, BatchView, SampleView

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
SAMPLE = {"name": "video", "prompt": "a ball", "num_frames": 21, "fps": 10, "resolution": "480", "aspect_ratio": "16,9"}
RESOLVED = resolve_sample(SampleOverrides.model_validate(SAMPLE), diffusers_profile("0", tiny=True), seed=0)


def shown(state: SampleState, *, ended: bool = False, **sample: Any) -> dict[str, Any]:
    view = BatchView(
        request_id="video_1",
        state=BatchState.RUNNING,
        model="Cosmos3-Nano",
        created_at=NOW,
        ended_at=NOW + timedelta(seconds=5) if ended else None,
        samples=[SampleView(name="video", state=state, seed=7, **sample)],
    )
    return video_object(view, RESOLVED, retention_s=60.0)


@pytest.mark.parametrize(
    ("state", "ended", "status", "progress"),
    [
        (SampleState.QUEUED, False, "queued", 0), (SampleState.STAGING, False, "queued", 0),
        (SampleState.RUNNING, False, "in_progress", 50), (SampleState.SUCCEEDED, False, "in_progress", 50),
        (SampleState.SUCCEEDED, True, "completed", 100), (SampleState.FAILED, False, "in_progress", 50),
        (SampleState.FAILED, True, "failed", 50), (SampleState.CANCELLED, True, "failed", 50),
    ],
)  # fmt: skip
def test_a_video_has_the_clients_states(state: SampleState, ended: bool, status: str, progress: int) -> None:
    steps = {} if state in (SampleState.QUEUED, SampleState.STAGING) else {"step": 2, "total_steps": 4}
    video = shown(state, ended=ended, **steps)
    assert (video["status"], video["progress"]) == (status, progress)
    assert set(Video.model_fields) <= set(video)  # its sizes and names of models are OpenAI's own, and not checked
    assert (video["completed_at"] is not None) is (status == "completed")
    assert video["expires_at"] == (int(NOW.timestamp()) + 65 if ended else None)
    assert (video["error"] is not None) is (status == "failed")


def test_size_and_seconds_are_what_is_made() -> None:
    video = shown(SampleState.QUEUED)
    assert (video["size"], video["seconds"], video["prompt"]) == ("832x480", "2.1", "a ball")


def test_the_last_step_is_not_the_end() -> None:
    assert shown(SampleState.RUNNING, step=4, total_steps=4)["progress"] == 99


def test_an_unreadable_request_still_has_a_state() -> None:
    view = BatchView(
        request_id="v", state=BatchState.FAILED, model="m", created_at=NOW, ended_at=NOW,
        samples=[SampleView(name="video", state=SampleState.FAILED, code="engine_failed", message="it broke")],
    )  # fmt: skip
    video = video_object(view, None, retention_s=1.0)
    assert video["error"] == {"code": "engine_failed", "message": "it broke"}
    assert (video["prompt"], video["size"]) == (None, "auto")


def test_a_picture_is_one_of_the_clients_answers() -> None:
    answer = ImagesResponse.model_validate(image_answer(1, {"b64_json": "AA=="}, 7), strict=True)
    assert answer.data is not None and answer.data[0].b64_json == "AA=="
