"""Ahead: conditioning media decoded before their sample's turn, so that the thread that denoises does not wait for it.

What is read ahead is what would have been read in its turn: the same file by the same call. Room is bounded; what finds
none, and whatever goes wrong, is left for the turn itself, which then tells it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cosmos3_serve.errors import SampleError
from cosmos3_serve.generator.engines.job import EngineJob
from cosmos3_serve.generator.engines.media import Clip, NoRoom, read_media

AHEAD_BYTES = 1024**3  # of decoded frames that wait for their turn


@dataclass(frozen=True, slots=True)
class Wanted:
    """One read of `read_media`, before it is done."""

    path: str
    field: str
    size: tuple[int, int] | None = None
    max_frames: int | None = None
    keep: Literal["first", "last"] = "first"

    def read(self, room: int | None = None) -> Clip:
        return read_media(
            Path(self.path), self.field, size=self.size, max_frames=self.max_frames, keep=self.keep, room=room
        )


Take = Callable[[Wanted], Clip]


@dataclass(eq=False, slots=True)
class _Held:
    job: EngineJob  # kept alive: its identity is the key
    found: dict[Wanted, Clip | SampleError]


class Ahead:
    """`load` in one thread, `take` and `drop` in any. Jobs are told apart by identity: two may bear one name."""

    def __init__(self, max_bytes: int = AHEAD_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._held: dict[int, _Held] = {}
        self.used_bytes = 0

    def load(self, job: EngineJob, wanted: Iterable[Wanted]) -> None:
        """Read what the job will want. Never raises for the sample's sake."""
        with self._lock:
            held = self._held.setdefault(id(job), _Held(job, {}))
        for one in wanted:
            found: Clip | SampleError
            try:
                found = one.read(room=self._max_bytes - self.used_bytes)
            except NoRoom:
                return
            except SampleError as error:
                found = error  # a verdict on the file: it needs no second look
            with self._lock:
                if self._held.get(id(job)) is not held:
                    return  # dropped meanwhile
                held.found[one] = found
                self.used_bytes += _size(found)

    def taker(self, job: EngineJob) -> Take:
        """How the job's turn gets its media: from here, once, else from the file."""

        def take(one: Wanted) -> Clip:
            with self._lock:
                held = self._held.get(id(job))
                found = held.found.pop(one, None) if held else None
                self.used_bytes -= _size(found)
            if isinstance(found, SampleError):
                raise found
            return one.read() if found is None else found

        return take

    def drop(self, job: EngineJob) -> None:
        """The job is over, or never comes."""
        with self._lock, suppress(KeyError):
            self.used_bytes -= sum(map(_size, self._held.pop(id(job)).found.values()))


def _size(found: Clip | SampleError | None) -> int:
    return found.frames.nbytes if isinstance(found, Clip) else 0
