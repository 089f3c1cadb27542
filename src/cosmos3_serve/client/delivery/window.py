"""How many small downloads are in flight: as many as shorten the whole, which depends on the round trip.

Small files wait for round trips, not for bandwidth. While one takes about as long as the fastest did, another one in
flight costs nothing and the window grows by one. Where each takes several times as long they wait for each other: for
the link, the service or this machine's cores, and the window shrinks, as it does when the service is in trouble.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic

UNHURRIED, CROWDED = 2.0, 4.0  # times as long as the fastest
SHRUNK, HALVED = 0.75, 0.5
JITTER_S = 0.005  # of times so short that they tell nothing


class Window:
    """Admission in the order of asking, of one event loop.

    Args:
        first: in flight at first.
        least, most: bounds.
    """

    def __init__(self, first: int, *, least: int, most: int, clock: Callable[[], float] = monotonic) -> None:
        self.size, self._least, self._most, self._clock = float(first), least, most, clock
        self.in_flight = 0
        self._fastest, self._shrunk_at = float("inf"), clock()
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold a place; the time until it is given back is what the window learns from."""
        await self._enter()
        started = self._clock()
        try:
            yield
            self._learn(self._clock() - started)
        finally:
            self.in_flight -= 1
            self._wake()

    def trouble(self) -> None:
        """The service refused or broke off: fewer at once."""
        self._shrink(HALVED)

    async def _enter(self) -> None:
        if self.in_flight < int(self.size) and not self._waiting:
            self.in_flight += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # admitted and cancelled at once
                self.in_flight -= 1
                self._wake()
            raise

    def _learn(self, seconds: float) -> None:
        self._fastest = min(self._fastest, seconds)
        if seconds <= UNHURRIED * self._fastest + JITTER_S:
            self.size = min(float(self._most), self.size + 1)
        elif seconds > CROWDED * self._fastest + JITTER_S and self._clock() - self._shrunk_at > seconds:
            self._shrink(SHRUNK)  # at most once for all that were in flight together

    def _shrink(self, share: float) -> None:
        self.size = max(float(self._least), self.size * share)
        self._shrunk_at = self._clock()

    def _wake(self) -> None:
        while self._waiting and self.in_flight < int(self.size):
            turn = self._waiting.popleft()
            if not turn.done():
                self.in_flight += 1
                turn.set_result(None)
