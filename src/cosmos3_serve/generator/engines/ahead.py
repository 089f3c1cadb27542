"""Ahead: conditioning media decoded before their sample's turn, so that the thread that denoises does not wait for it.

What is read ahead is what would have been read in its turn: the same file by the same call. Room is bounded; what finds
none, and whatever goes wrong, is left for the turn itself, which then tells it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from cosmos3_serve.errors import SampleCode, SampleError
from cosmos3_serve.generator.engines.inputs import Take, Wanted
from cosmos3_serve.generator.engines.job import EngineJob
from cosmos3_serve.media.read import Media, NoRoom

AHEAD_BYTES = 1024**3  # of decoded frames that wait for their turn


@dataclass(eq=False, slots=True)
class _Held:
    job: EngineJob  # kept alive: its identity is the key
    found: dict[Wanted, Media | SampleError]


class Ahead:
    """`load` in one thread, `take` and `drop` in any. Jobs are told apart by identity: two may bear one name."""

    def __init__(self, max_bytes: int = AHEAD_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._held: dict[int, _Held] = {}
        self.used_bytes = 0

    def load(self, job: EngineJob, wanted: Iterable[Wanted]) -> None:
        """Read what the job will want, until it is dropped. Never raises for the sample's sake."""
        with self._lock:
            held = self._held.setdefault(id(job), _Held(job, {}))

        def dropped() -> bool:
            return self._held.get(id(job)) is not held

        for one in wanted:
            found: Media | SampleError
            try:
                found = one.read(self._max_bytes - self.used_bytes, dropped)
            except NoRoom:
                return
            except SampleError as error:
                if error.sample_code is not SampleCode.INPUT_INVALID:
                    continue  # no verdict on the file
                found = error
            with self._lock:
                if self._held.get(id(job)) is not held:
                    return  # dropped meanwhile
                held.found[one] = found
                self.used_bytes += _size(found)

    def taker(self, job: EngineJob, cancelled: Callable[[], bool] = lambda: False) -> Take:
        """How the job's turn gets its media: from here, once, else from the file until it is `cancelled`."""

        def take(one: Wanted) -> Media:
            with self._lock:
                held = self._held.get(id(job))
                found = held.found.pop(one, None) if held else None
                self.used_bytes -= _size(found)
            if isinstance(found, SampleError):
                raise found
            return one.read(cancelled=cancelled) if found is None else found

        return take

    def drop(self, job: EngineJob) -> None:
        """The job is over, or never comes."""
        with self._lock, suppress(KeyError):
            self.used_bytes -= sum(map(_size, self._held.pop(id(job)).found.values()))


def _size(found: Media | SampleError | None) -> int:
    return found.frames.nbytes if isinstance(found, Media) else 0
