"""Prompts with content: block-world scenes, and whether what came shows them, judged after the clock has stopped."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from cosmos3_serve.bench.generator.records import Sample
from cosmos3_serve.blockworld.asked import Asked, held_out

SUFFIXES = (".jpg", ".mp4")
PICTURE = {"aspect_ratio": "1,1"}  # the size that the block-world model was trained with


def asked(seed: int, fields: dict[str, Any]) -> Asked:
    """The scene of the sample with this seed: with more than one frame a clip in which something moves."""
    return held_out(seed, moving=fields["num_frames"] > 1)


class Judge:
    """Keeps what is fetched on disk until it is judged; an async context manager."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="cosmos3-bench-")
        self._waiting: list[tuple[Sample, Asked, Path]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self._folder.cleanup)

    def file_for(self, path: str) -> Path | None:
        """Where an artifact goes; None for what is no picture or clip."""
        suffix = Path(path).suffix.lower()
        return Path(self._folder.name) / f"{secrets.token_hex(8)}{suffix}" if suffix in SUFFIXES else None

    def add(self, sample: Sample, wanted: Asked, file: Path) -> None:
        self._waiting.append((sample, wanted, file))

    async def judge(self) -> None:
        """Set `shown` of every sample that was added since, and forget its file."""
        for sample, wanted, file in self._waiting:
            sample.shown = await asyncio.to_thread(_shown, wanted, file)
        self._waiting.clear()


def _shown(wanted: Asked, file: Path) -> bool | None:
    """None where the file holds no picture: whether it should is not asked here."""
    import av

    from cosmos3_serve.blockworld.files import decode

    try:
        return wanted.shown(decode(file))
    except (OSError, ValueError, av.error.FFmpegError):
        return None
    finally:
        file.unlink(missing_ok=True)
