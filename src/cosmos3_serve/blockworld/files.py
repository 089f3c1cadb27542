"""From a file to pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

PICTURES = (".jpg", ".jpeg", ".png", ".webp")
CLIPS = (".mp4",)


def decode(path: Path) -> Any:
    """Frames [frames, height, width, 3] uint8 of a picture or clip.

    Raises:
        OSError, ValueError, av.FFmpegError: no picture or clip.
    """
    if path.suffix.lower() in PICTURES:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"))[None]
    with av.open(str(path)) as container:
        if not container.streams.video:
            raise ValueError(f"{path.name} holds no video")
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
