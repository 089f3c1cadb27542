"""The media of a publication, read back from where they were published: hash compared, decoded, and, where the samples
ask for block-world scenes, judged by what they show."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import av
import PIL.Image

from cosmos3_serve.checks import golden_blockworld
from cosmos3_serve.checks.golden_verdict import Medium
from cosmos3_serve.storage.files import in_thread
from cosmos3_serve.storage.location import open_store

PICTURES = (".jpg", ".jpeg", ".png", ".webp")
CLIPS = (".mp4",)
MAX_BYTES = 256 * 1024 * 1024


async def verified_media(
    location: str, manifest: Mapping[str, Any], scratch: Path, environ: Mapping[str, str]
) -> list[Medium]:
    """Every declared picture and clip whose bytes are the declared ones and that decodes; one that is not so is left
    out.

    Raises:
        NotFound, StorageFailure, UsageError: the publication cannot be read.
    """
    place = open_store(location, environ)
    found = []
    for number, artifact in enumerate(manifest.get("artifacts") or []):
        path = str(artifact["path"])
        if not path.lower().endswith((*PICTURES, *CLIPS)):
            continue
        copy = scratch / f"{number}{Path(path).suffix.lower()}"
        done = await place.store.download(place.key(f"artifacts/{path}"), copy, max_bytes=MAX_BYTES)
        size = await in_thread(_picture if copy.suffix in PICTURES else _clip, copy)
        if size is not None and done.sha256 == artifact["sha256"] and done.size == artifact["bytes"]:
            fault = await in_thread(golden_blockworld.fault, PurePosixPath(path).parent.name, copy)
            found.append(Medium(path, *size, done.sha256, fault))
    return found


def _picture(path: Path) -> tuple[int, int, int] | None:
    """(width, height, 1) when PIL verifies the file and decodes every pixel of it."""
    try:
        with PIL.Image.open(path) as image:
            image.verify()
        with PIL.Image.open(path) as image:
            image.load()
            return *image.size, 1
    except (OSError, ValueError, SyntaxError, PIL.Image.DecompressionBombError):
        return None


def _clip(path: Path) -> tuple[int, int, int] | None:
    """(width, height, frames) when every frame of the file decodes."""
    try:
        with av.open(str(path)) as container:
            video = container.streams.video[0]
            frames = sum(1 for _ in container.decode(video))
            return (video.width, video.height, frames) if frames else None
    except (OSError, ValueError, IndexError, av.error.FFmpegError):
        return None
