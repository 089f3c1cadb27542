"""Fakes for the generator's core: a clock that moves when told, and an engine that does what its script says."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable


class FakeClock:
    """Time stands still until `advance`; sleepers wake in order of their times."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self.time = start
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = itertools.count()

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.time + seconds, next(self._count), future))
        await future

    async def advance(self, seconds: float) -> None:
        """Move on, waking each sleeper at its own time and letting what it starts run."""
        end = self.time + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            at, _, future = heapq.heappop(self._sleepers)
            self.time = max(self.time, at)
            if not future.done():
                future.set_result(None)
            await settle()
        self.time = end
        await settle()


async def settle(turns: int = 20) -> None:
    """Let everything that is ready to run do so. (Work in threads is waited for by what it completes, not by this.)"""
    for _ in range(turns):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens in another task or thread; fails when it never does."""
    for _ in range(20_000):
        if condition():
            return
        await asyncio.sleep(0.0005)
    raise AssertionError("it never happened")
