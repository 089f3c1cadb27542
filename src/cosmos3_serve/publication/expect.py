"""What each declared file must turn out to be, from the response's resolved args.

Only what the framework fixes is bound. A clip's length follows the control video in transfer, and a conditioned picture
without a size key follows its input; there the file must decode, and no number is invented for it.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from cosmos3_serve.contract.media import expected_frames, expected_size
from cosmos3_serve.contract.wire import REASONER_TEXT
from cosmos3_serve.publication.media_probe import Expectation

IMAGES = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP"}


def expectation(path: str, args: dict[str, Any]) -> Expectation | None:
    """What the file at `path` must be for a sample with these resolved args; None when it is no media or text."""
    name = PurePosixPath(path)
    suffix = name.suffix.lower()
    if name.name == REASONER_TEXT:
        return Expectation(kind="text")
    if suffix not in IMAGES and suffix != ".mp4":
        return None
    # Debug and control media may have any size: only the primary file is bound by number.
    primary = name.stem == "vision"
    width, height = (expected_size(args) if primary else None) or (None, None)
    if suffix in IMAGES:
        return Expectation(kind="image", image_format=IMAGES[suffix], width=width, height=height)
    frames = expected_frames(args) if primary else None
    return Expectation(kind="video", width=width, height=height, frames=frames)
