"""KeptDurations: measured durations outlive the process, in one small file below the output root.

What was measured holds for one engine, checkpoint and device; a file of any other, or one that can't be read, is left
aside with a warning and replaced by what is measured now. An expectation never shrinks, so an operator who made the
machine faster removes the file.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import structlog

from cosmos3_serve.generator.engines.job import EngineInfo
from cosmos3_serve.generator.ledger.files import PRIVATE, write_file
from cosmos3_serve.generator.ports import Clock
from cosmos3_serve.generator.queue.durations import Durations

log = structlog.get_logger(__name__)

FILE = "durations.json"
FORMAT = 1
MAX_SHAPES = 1024
MAX_BYTES = 1024 * 1024
SAVE_S = 10.0
KEY = ("engine", "revision", "checkpoint", "checkpoint_revision", "checkpoint_digest", "device", "dtype")


class KeptDurations:
    """Nothing is read or written before `open`: until then it is not known for whom."""

    def __init__(self, output_root: Path, durations: Durations, clock: Clock) -> None:
        self._path = output_root / PRIVATE / FILE
        self._durations = durations
        self._clock = clock
        self._key: dict[str, str] | None = None
        self._saved = 0

    async def open(self, info: EngineInfo) -> None:
        """Take in what an earlier process measured on the same engine, checkpoint and device."""
        self._key = {name: str(getattr(info, name)) for name in KEY}
        kept = await asyncio.to_thread(_read, self._path, self._key)
        self._durations.restore(kept)
        self._saved = self._durations.changes

    async def run(self) -> None:
        """Save now and then; ends only by cancellation."""
        while True:
            await self._clock.sleep(SAVE_S)
            await self.save()

    async def save(self) -> None:
        """Write what changed. A disk that does not take it costs only the memory, never the work."""
        changes = self._durations.changes
        if self._key is None or changes == self._saved:
            return
        known = self._durations.known()[-MAX_SHAPES:]
        try:
            await asyncio.to_thread(_write, self._path, self._key, known)
            self._saved = changes
        except OSError as error:
            log.warning("durations_not_saved", reason=type(error).__name__)


def _write(path: Path, key: dict[str, str], known: Sequence[tuple[Hashable, float]]) -> None:
    body = {"format": FORMAT, "key": key, "seconds": [[shape, round(seconds, 3)] for shape, seconds in known]}
    write_file(path, json.dumps(body, separators=(",", ":")).encode())


def _read(path: Path, key: dict[str, str]) -> list[tuple[Hashable, float]]:
    """Shapes and seconds, least recently seen first; empty, with a warning, when the file is not for us."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError("too large")
        body = json.loads(data)
        if body["format"] != FORMAT or body["key"] != key:
            log.warning("durations_of_another_engine", ignored=len(body["seconds"]))
            return []
        return [(_shape(shape), _seconds(seconds)) for shape, seconds in body["seconds"][-MAX_SHAPES:]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        log.warning("durations_unreadable", reason=type(error).__name__)
        return []


def _shape(value: Any) -> Hashable:
    """JSON has no tuples."""
    if isinstance(value, list):
        return tuple(_shape(part) for part in value)
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError("not a shape")


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError("not seconds")
    return float(value)
