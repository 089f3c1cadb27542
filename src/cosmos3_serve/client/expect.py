"""What each declared file must turn out to be, from the response's resolved args (source: framework sections 4 to 7).

Only what the framework fixes is bound. A clip's length follows the control video in transfer, and a conditioned picture
without a size key follows its input; there the file must decode, and no number is invented for it.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from cosmos3_serve.contract.modes import ACTION_MODES, HINTS
from cosmos3_serve.contract.sizes import size_of

MAX_PIXELS = 64 * 1024 * 1024  # of one image or frame
MAX_FRAMES = 20_000  # of a clip whose length nothing binds
MAX_TEXT_BYTES = 16 * 1024 * 1024
IMAGES = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP"}


class Expectation(BaseModel):
    """One file's proof: its kind, and size and frame count where the request fixes them (pixels, frames)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["image", "video", "text"]
    image_format: str | None = None
    width: int | None = None
    height: int | None = None
    frames: int | None = None
    max_pixels: int = MAX_PIXELS
    max_frames: int = MAX_FRAMES


def expectation(path: str, args: dict[str, Any]) -> Expectation | None:
    """What the file at `path` must be for a sample with these resolved args; None when it is no media or text."""
    name = PurePosixPath(path)
    suffix = name.suffix.lower()
    if name.name == "reasoner_text.txt":
        return Expectation(kind="text")
    if suffix not in IMAGES and suffix != ".mp4":
        return None
    mode = args.get("model_mode")
    transfer = any(args.get(hint) is not None for hint in HINTS)
    # Debug media may have any size: only what the contract names is bound by number.
    named = name.stem == "vision" and not transfer and mode not in ACTION_MODES
    size = size_of(_text(args.get("resolution")), _text(args.get("aspect_ratio"))) if named else None
    width, height = size or (None, None)
    if suffix in IMAGES:
        return Expectation(kind="image", image_format=IMAGES[suffix], width=width, height=height)
    frames = args.get("num_frames") if named else None
    if name.stem == "vision" and mode in ACTION_MODES and not transfer:
        chunk = args.get("action_chunk_size")
        frames = chunk + 1 if type(chunk) is int else None
    return Expectation(kind="video", width=width, height=height, frames=frames if type(frames) is int else None)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
