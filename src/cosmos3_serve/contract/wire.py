"""Names that go over the wire, and nothing else (docs/contract.md 1)."""

from __future__ import annotations

import re
from typing import Final

BATCH_SCHEMA: Final = "npa.cosmos3.ray-serve.batch.v1"
PROVENANCE_SCHEMA: Final = "npa.cosmos3.ray-serve.provenance.v1"

FRAMEWORK_REVISION: Final = "5e67049cd94acb667786f1e6dd0dab821cb90c97"
FRAMEWORK_BACKEND: Final = "cosmos-framework-native-ray-serve"
DIFFUSERS_BACKEND: Final = "diffusers-ray-serve"
DIFFUSERS_REVISION: Final = "diffusers-0.42.1"  # of the diffusers that this package pins

MODEL_NAME: Final = "Cosmos3-Nano"
APP_NAME: Final = "npa_cosmos3_ray_serve"

# Primary artifacts; the media extension follows the resolved frame count (1 frame = image).
VISION_IMAGE: Final = "vision.jpg"
VISION_VIDEO: Final = "vision.mp4"
REASONER_TEXT: Final = "reasoner_text.txt"
# Written beside the artifacts, never declared in a response.
SAMPLE_ARGS: Final = "sample_args.json"
SAMPLE_OUTPUTS: Final = "sample_outputs.json"

SAFE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
# For pydantic only: its regex engine lets `$` match the very end and nothing else, unlike `re`.
SHA256_HEX: Final = r"^[0-9a-f]{64}$"
SOURCE_REVISION: Final = r"^[0-9a-f]{40}$"


def is_safe_name(text: str) -> bool:
    """Whether `text` may be a sample name, a request id or a path part: one ASCII letter or digit, then up to 127 of
    letters, digits, `.`, `_`, `-`. Full match, so a trailing newline is not safe."""
    return SAFE_NAME.fullmatch(text) is not None


def vision_file(num_frames: int) -> str:
    """Name of the primary media file for a resolved frame count."""
    return VISION_IMAGE if num_frames == 1 else VISION_VIDEO


def control_file(hint: str, num_frames: int) -> str:
    """Name of the control media file of one transfer hint."""
    return f"control_{hint}.jpg" if num_frames == 1 else f"control_{hint}.mp4"


def artifact_problem(path: str, request_id: str, sample: str) -> str | None:
    """Why `path` is no artifact path of this sample, or None when it is one.

    An artifact path is `<request_id>/<sample>/<file>`, possibly deeper, each part a safe name, relative to the output
    root (docs/contract.md 4.2).
    """
    parts = path.split("/")
    if len(parts) < 3:
        return "has fewer than three parts"
    if parts[0] != request_id or parts[1] != sample:
        return "lies outside its request and sample"
    if not all(is_safe_name(part) for part in parts):
        return "has a part that is not a safe name"
    return None
