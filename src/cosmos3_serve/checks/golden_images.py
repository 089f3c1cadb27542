"""The images of a publication, read back from where they were published: hash compared, verified and decoded by PIL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import PIL.Image

from cosmos3_serve.checks.golden_verdict import Image
from cosmos3_serve.storage.files import in_thread
from cosmos3_serve.storage.location import open_store

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
MAX_BYTES = 256 * 1024 * 1024


async def verified_images(
    location: str, manifest: Mapping[str, Any], scratch: Path, environ: Mapping[str, str]
) -> list[Image]:
    """Every declared image whose bytes are the declared ones and that PIL opens; one that is not so is left out.

    Raises:
        NotFound, StorageFailure, UsageError: the publication cannot be read.
    """
    place = open_store(location, environ)
    found = []
    for number, artifact in enumerate(manifest.get("artifacts") or []):
        path = str(artifact["path"])
        if not path.lower().endswith(SUFFIXES):
            continue
        copy = scratch / f"{number}{Path(path).suffix.lower()}"
        done = await place.store.download(place.key(f"artifacts/{path}"), copy, max_bytes=MAX_BYTES)
        size = await in_thread(_verify, copy)
        if size is not None and done.sha256 == artifact["sha256"] and done.size == artifact["bytes"]:
            found.append(Image(path, *size, done.sha256))
    return found


def _verify(path: Path) -> tuple[int, int] | None:
    """(width, height) in pixels when PIL verifies the file and decodes every pixel of it."""
    try:
        with PIL.Image.open(path) as image:
            image.verify()
        with PIL.Image.open(path) as image:
            image.load()
            return image.size
    except (OSError, ValueError, SyntaxError, PIL.Image.DecompressionBombError):
        return None
