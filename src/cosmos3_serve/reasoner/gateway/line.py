"""WaitingLine: where questions stand while every replica is full. Bounded in number and time, first come first served.

The router itself never waits: it says `fleet_saturated`. Whoever is told so stands here and asks again when something
may have changed (`wake`); only the first in line asks, so that a slot that frees goes to who waited longest.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from cosmos3_serve.errors import QueueFull

T = TypeVar("T")
SATURATED = "fleet_saturated"
LEAVE_RETRY_S = 2.0


class WaitingLine:
    """
    Args:
        limit: how many may wait.
        timeout_s: how long one may wait.
    """

    def __init__(self, limit: int, timeout_s: float) -> None:
        self.limit, self.timeout_s = limit, timeout_s
        self._line: deque[asyncio.Event] = deque()
        self.refused = 0

    def __len__(self) -> int:
        return len(self._line)

    def wake(self) -> None:
        """A place may be free: the first in line asks again."""
        if self._line:
            self._line[0].set()

    async def place(self, choose: Callable[[], Awaitable[T]]) -> T:
        """What `choose` gives, as soon as it is this caller's turn and it says something else than `fleet_saturated`.

        Raises:
            QueueFull: code `queue_full`: too many wait, or the wait was too long.
            Cosmos3Error: as `choose`.
        """
        if not self._line:
            try:
                return await choose()
            except QueueFull as full:
                if full.stable_code != SATURATED:
                    raise
        if len(self._line) >= self.limit:
            self.refused += 1
            raise self._full(f"every replica is full and {self.limit} questions wait")
        turn = asyncio.Event()
        self._line.append(turn)
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self._wait(turn, choose)
        except TimeoutError:
            self.refused += 1
            raise self._full(f"no replica was free for {self.timeout_s:g} seconds") from None
        finally:
            self._line.remove(turn)
            self.wake()  # perhaps there is room for the next as well

    async def _wait(self, turn: asyncio.Event, choose: Callable[[], Awaitable[T]]) -> T:
        while True:
            if self._line[0] is not turn:
                await turn.wait()
            turn.clear()
            if self._line[0] is not turn:
                continue
            try:
                return await choose()
            except QueueFull as full:
                if full.stable_code != SATURATED:
                    raise
            await turn.wait()

    def _full(self, detail: str) -> QueueFull:
        return QueueFull(detail, remedy="send it again a little later", retry_after_s=LEAVE_RETRY_S)
