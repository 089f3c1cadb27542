"""What a batch must fit into before anything is sent: the limits that the service announces in `/ready`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from cosmos3_serve.contract.batch import BatchRequest
from cosmos3_serve.contract.views import BatchLimits
from cosmos3_serve.errors import LimitExceeded

# Seconds that a batch may take where nobody says: far above what one GPU needs, so that a hung service is noticed and a
# working one never cut.
BASE_S, IMAGE_S, FRAME_S = 1800.0, 30.0, 5.0
DEFAULT_FRAMES = 189
LONGEST_S = 7 * 24 * 3600.0


def require_fit(ready: Mapping[str, Any], request: BatchRequest, body: bytes) -> None:
    """Refuse a batch that the service would refuse; one that announces no limits is asked by the POST itself.

    Raises:
        LimitExceeded: with both numbers, and how many samples a batch may have.
    """
    try:
        limits = BatchLimits.model_validate(ready.get("limits"))
    except ValidationError:
        return
    samples = len(request.samples)
    if len(body) <= limits.body_bytes and samples <= limits.samples:
        return
    batches = max(-(-len(body) // max(1, limits.body_bytes)), -(-samples // max(1, limits.samples)))
    raise LimitExceeded(
        f"the batch has {samples} samples in {len(body)} bytes; the service takes at most {limits.samples} samples and "
        f"{limits.body_bytes} bytes",
        remedy=f"split it into {batches} or more batches, or ask the operator for larger limits (--max-samples, "
        "--max-body-bytes)",
        code="batch_too_large",
    )


def default_timeout_s(request: BatchRequest) -> float:
    """Seconds for a whole submission where none are given: they follow from the samples, images and frames."""
    total = BASE_S
    for sample in request.samples:
        frames = sample.get("num_frames")
        mode = str(sample.get("model_mode") or "")
        if frames == 1 or (frames is None and (mode.endswith("2image") or mode == "reasoner")):
            total += IMAGE_S
        else:
            total += FRAME_S * (frames if isinstance(frames, int) and frames > 0 else DEFAULT_FRAMES)
    return min(LONGEST_S, total)
