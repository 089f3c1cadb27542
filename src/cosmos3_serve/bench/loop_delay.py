"""LoopDelay: for how long the client's event loop was busy, and read no answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Self

EVERY_S = 0.01
KEPT = 4096


class LoopDelay:
    """An asynchronous context in which a timer wakes every `EVERY_S`; a late wake is a busy loop.

    Args:
        clock: seconds, of the records that are measured.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._late: deque[tuple[float, float]] = deque(maxlen=KEPT)  # when it was due, and when it came
        self._due = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._late.clear()
        self._due = self._clock() + EVERY_S
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def longest(self, since: float, until: float) -> float | None:
        """The longest delay between two moments, seconds; None outside of the context."""
        if self._task is None:
            return None
        # The wake that is due now has not come yet if the loop was busy until this moment.
        spans = [*reversed(self._late), (self._due, until)]
        return max(0.0, *(min(came, until) - max(due, since) for due, came in spans if came >= since))

    async def _watch(self) -> None:
        while True:
            self._due = self._clock() + EVERY_S
            await asyncio.sleep(EVERY_S)
            came = self._clock()
            if came - self._due > EVERY_S / 2:
                self._late.append((self._due, came))
