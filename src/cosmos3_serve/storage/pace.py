"""How much may be in flight to one bucket, and how long it may take: both follow from what the link has shown.

Requests at once grow by one with each success and halve after a timeout, as TCP's window does. A time limit is a
latency plus the bytes in flight over a rate: at first the smallest rate that is supported, then a quarter of what was
measured. So a slow link gets long limits and few requests, and a dead one is noticed soon on a fast link.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic

from cosmos3_serve.errors import StorageFailure

MIB = 1024 * 1024
RANGES = 8
SLOWEST = 16  # how much below the smallest rate timeouts may take the estimate


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """
    Args:
        connect_s: seconds to reach the server.
        answer_s: seconds without a byte, once a request was sent.
        bytes_per_s: the smallest rate that is reckoned with, over all requests together.
    """

    connect_s: float = 10.0
    answer_s: float = 60.0
    bytes_per_s: float = 64 * 1024


class Pace:
    """Admission of uploads to one bucket, in the order in which they ask.

    Args:
        most: requests at once at most.
        most_bytes: bytes in flight at most (each upload is held in memory); one larger upload may go alone.
    """

    def __init__(
        self,
        limits: TimeLimits,
        *,
        first: int = 4,
        most: int = 32,
        most_bytes: int = 64 * MIB,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._limits, self._most, self._most_bytes, self._clock = limits, most, most_bytes, clock
        self.window = float(first)
        self.rate = limits.bytes_per_s  # bytes per second over all requests, as reckoned with
        self.requests = self.bytes = 0
        self.ranges = asyncio.Semaphore(RANGES)  # of objects that are read, each in memory
        self._waiting: deque[tuple[asyncio.Future[None], int, int]] = deque()

    def time_limit_s(self, size: int) -> float:
        """Seconds for an upload of which `size` bytes are in flight at a time, beside what else may be."""
        beside = min(self._most_bytes, max(self.bytes, size))
        return self._limits.answer_s + beside / self.rate

    def parallel(self, parts: int) -> int:
        """How many of an upload's `parts` may be in flight at a time."""
        return max(1, min(parts, int(self.window)))

    @asynccontextmanager
    async def admitted(self, requests: int, size: int) -> AsyncIterator[Room]:
        """Hold room for `requests` with `size` bytes in flight at a time.

        What the body raises is the outcome: a StorageFailure that passes makes the window smaller.
        """
        room = Room(self, requests, size)
        await room.take()
        started = self._clock()
        try:
            yield room
        except StorageFailure as error:
            if error.retryable:
                self._slower(timed_out=error.stable_code == "storage_timeout")
            raise
        else:
            self._faster(started, learn=not room.waited)
        finally:
            room.give_back()

    def _fits(self, requests: int, size: int) -> bool:
        if not self.requests:
            return True
        return self.requests + requests <= self.window and self.bytes + size <= self._most_bytes

    async def enter(self, requests: int, size: int) -> None:
        if self._waiting or not self._fits(requests, size):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append((turn, requests, size))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():  # admitted and cancelled at once
                    self.leave(requests, size)
                self._wake()
                raise
        else:
            self.requests += requests
            self.bytes += size

    def leave(self, requests: int, size: int) -> None:
        self.requests -= requests
        self.bytes -= size
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            turn, requests, size = self._waiting[0]
            if turn.cancelled():
                self._waiting.popleft()
            elif self._fits(requests, size):
                self._waiting.popleft()
                self.requests += requests
                self.bytes += size
                turn.set_result(None)
            else:
                return

    def _faster(self, started: float, *, learn: bool) -> None:
        self.window = min(float(self._most), self.window + 1)
        if not learn:
            return
        seconds = max(0.001, self._clock() - started)
        measured = self.bytes / seconds / 4
        if self.bytes >= MIB:  # small objects measure the round trip, not the rate
            self.rate = max(self._limits.bytes_per_s, (self.rate + measured) / 2)

    def _slower(self, *, timed_out: bool) -> None:
        self.window = max(1.0, self.window / 2)
        if timed_out:
            self.rate = max(self._limits.bytes_per_s / SLOWEST, self.rate / 2)


class Room:
    """What one upload holds of a Pace."""

    def __init__(self, pace: Pace, requests: int, size: int) -> None:
        self._pace, self._requests, self._size, self._held = pace, requests, size, False
        self.waited = False

    async def take(self) -> None:
        await self._pace.enter(self._requests, self._size)
        self._held = True

    def give_back(self) -> None:
        if self._held:
            self._held = False
            self._pace.leave(self._requests, self._size)

    async def outside(self, wait: Awaitable[None]) -> None:
        """Await something that other uploads may depend on, without holding room."""
        self.waited = True
        self.give_back()
        await wait
        await self.take()
