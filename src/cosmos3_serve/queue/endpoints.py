"""The services that parts are sent to: which one next, and which one not for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from cosmos3_serve.errors import Cosmos3Error

WATCH_S = 5.0
MISSES = 3  # checks in a row without an answer, before running parts move to another service
AWAY_S = (2.0, 60.0)  # first and longest wait before a service is tried again


@dataclass(eq=False)
class Endpoint:
    """One service. `away_until` is by the fleet's clock; `refused` says why it is not used any more."""

    address: str
    running: int = 0
    failures: int = 0
    misses: int = 0
    away_until: float = 0.0
    refused: Cosmos3Error | None = None
    why: str = ""


@dataclass
class Fleet:
    """
    Args:
        slots: parts that one service works on at once.
        check: whether a service answers at all.
    """

    endpoints: Sequence[Endpoint]
    slots: int
    check: Callable[[str], Awaitable[bool]]
    clock: Callable[[], float] = time.monotonic
    on_down: Callable[[Endpoint], None] = field(default=lambda endpoint: None)

    def pick(self, preferred: str = "") -> Endpoint | None:
        """The preferred service if it has room, else the one with the most room; None where none has."""
        now = self.clock()
        free = [e for e in self.endpoints if e.refused is None and e.away_until <= now and e.running < self.slots]
        return min(free, key=lambda e: (e.address != preferred, e.running, e.failures), default=None)

    @property
    def usable(self) -> bool:
        return any(endpoint.refused is None for endpoint in self.endpoints)

    def failed(self, endpoint: Endpoint, error: Cosmos3Error) -> None:
        """Not this one for a while, longer each time."""
        first, longest = AWAY_S
        wait = min(longest, first * 2 ** min(endpoint.failures, 10))
        endpoint.failures += 1
        endpoint.away_until = self.clock() + max(wait, min(error.retry_after_s or 0.0, longest))
        endpoint.why = error.detail

    def worked(self, endpoint: Endpoint) -> None:
        endpoint.failures, endpoint.misses, endpoint.why = 0, 0, ""

    async def watch(self) -> None:
        """Tell which services with running parts have gone, for as long as there is another one. Never returns."""
        while True:
            await asyncio.sleep(WATCH_S)
            busy = [endpoint for endpoint in self.endpoints if endpoint.running]
            await asyncio.gather(*map(self._look, busy))

    async def _look(self, endpoint: Endpoint) -> None:
        if await self.check(endpoint.address):
            endpoint.misses = 0
            return
        endpoint.misses += 1
        others = [e for e in self.endpoints if e is not endpoint and e.refused is None and not e.misses]
        if endpoint.misses >= MISSES and others:
            endpoint.misses = 0
            self.on_down(endpoint)
