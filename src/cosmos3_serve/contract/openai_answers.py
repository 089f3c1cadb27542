"""What OpenAI's video and image endpoints answer: objects made from a batch of one sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cosmos3_serve.contract.media import size_of
from cosmos3_serve.contract.records import SampleState
from cosmos3_serve.contract.resolved import ResolvedSample
from cosmos3_serve.contract.views import BatchView

_STATUS: Final = {
    SampleState.QUEUED: "queued",
    SampleState.STAGING: "queued",
    SampleState.RUNNING: "in_progress",
    SampleState.SUCCEEDED: "completed",
    SampleState.FAILED: "failed",
    SampleState.CANCELLED: "failed",
}


def video_object(view: BatchView, resolved: ResolvedSample | None, *, retention_s: float) -> dict[str, Any]:
    """OpenAI's `video` object.

    Args:
        resolved: the sample with its defaults filled in; None where the stored request cannot be read any more.
        retention_s: how long an ended batch keeps its files.
    """
    sample = view.samples[0]
    ended = view.ended_at
    status = _STATUS[sample.state]
    if sample.state.ended and ended is None:
        status = "in_progress"  # what came of the sample can be had, or deleted, once its batch has ended
    failed = status == "failed"
    size = size_of(resolved.resolution, resolved.aspect_ratio) if resolved else None
    return {
        "id": view.request_id,
        "object": "video",
        "model": view.model,
        "status": status,
        "progress": _progress(status, sample.step, sample.total_steps),
        "created_at": int(view.created_at.timestamp()),
        "completed_at": int(ended.timestamp()) if ended and not failed else None,
        "expires_at": int(ended.timestamp() + retention_s) if ended else None,
        "prompt": resolved.prompt if resolved else None,
        "size": f"{size[0]}x{size[1]}" if size else "auto",
        "seconds": f"{resolved.num_frames / resolved.fps:g}" if resolved else "",
        "remixed_from_video_id": None,
        "error": {"code": sample.code or "failed", "message": sample.message or "no reason given"} if failed else None,
        "seed": sample.seed,
    }


def _progress(status: str, step: int | None, total: int | None) -> int:
    if status == "completed":
        return 100
    return min(99, 100 * step // total) if step and total else 0


def image_answer(created: int, data: Mapping[str, Any], seed: int | None) -> dict[str, Any]:
    """OpenAI's answer with one picture: `data` holds `b64_json` or `url`."""
    return {"created": created, "data": [dict(data)], "output_format": "jpeg", "seed": seed}
