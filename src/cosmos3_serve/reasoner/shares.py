"""Shares: a few places of one kind, shared fairly between owners.

Whoever holds places may hold them for long: a name server that never answers, a file that decodes slowly. So an order
of those who wait is not enough. One place stays free for each other owner who was here in the last minutes and holds
none, for at most half of the places; a service with one owner uses all of them. Places that become free go to those who
wait by owner in turn, each owner's in their order.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from cosmos3_serve.errors import Cosmos3Error

RECENT_S = 300.0
MAX_OWNERS = 1024  # that are remembered


class Owners:
    """Who was here lately; at most 1,024 are remembered."""

    def __init__(self, recent_s: float, clock: Callable[[], float]) -> None:
        self._recent_s, self._clock = recent_s, clock
        self._seen: OrderedDict[str, float] = OrderedDict()

    def note(self, owner: str) -> None:
        now = self._clock()
        self._seen[owner] = now
        self._seen.move_to_end(owner)
        while len(self._seen) > MAX_OWNERS or next(iter(self._seen.values())) < now - self._recent_s:
            self._seen.popitem(last=False)

    def others(self, owner: str) -> list[str]:
        since = self._clock() - self._recent_s
        return [name for name, at in self._seen.items() if name != owner and at >= since]


class Shares:
    """
    Args:
        limit: places.
        waiting: who may wait; one owner fills at most half of that.
        busy: the failure of whoever finds no room to wait.
    """

    def __init__(
        self,
        limit: int,
        waiting: int,
        busy: Callable[[], Cosmos3Error],
        *,
        recent_s: float = RECENT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit, self._most, self._busy = limit, waiting, busy
        self._owners = Owners(recent_s, clock)
        self._held: Counter[str] = Counter()
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # the first owner's turn is next

    @property
    def held(self) -> int:
        return self._held.total()

    @property
    def waiting(self) -> int:
        return sum(map(len, self._lines.values()))

    @asynccontextmanager
    async def place(self, owner: str) -> AsyncIterator[None]:
        """Hold a place.

        Raises:
            Cosmos3Error: `busy`.
        """
        await self.take(owner)
        try:
            yield
        finally:
            self.give_back(owner)

    async def take(self, owner: str) -> None:
        """As entering `place`; `give_back` must follow, from the same event loop."""
        self._owners.note(owner)
        if owner not in self._lines and self._may(owner):
            self._held[owner] += 1
            return
        line = self._lines.get(owner)
        if self.waiting >= self._most or (line is not None and len(line) >= max(1, self._most // 2)):
            raise self._busy()
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(owner, deque()).append(mine)
        self._serve()
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self.give_back(owner)  # it was given at the same moment
            else:
                self._leave(owner, mine)
            raise

    def give_back(self, owner: str) -> None:
        self._held[owner] -= 1
        if self._held[owner] <= 0:
            del self._held[owner]
        self._serve()

    def _may(self, owner: str) -> bool:
        free = self._limit - self.held
        if free <= 0 or not self._held[owner]:
            return free > 0
        absent = sum(not self._held[other] for other in self._owners.others(owner))
        return free > min(absent, self._limit // 2)

    def _serve(self) -> None:
        """Give what is free to those who may have it, by owner in turn."""
        given = True
        while given:
            given = False
            for owner in list(self._lines):
                if self._may(owner):
                    self._lines.move_to_end(owner)
                    line = self._lines[owner]
                    mine = line.popleft()
                    if not line:
                        del self._lines[owner]
                    if not mine.done():
                        self._held[owner] += 1
                        mine.set_result(None)
                    given = True
                    break

    def _leave(self, owner: str, mine: asyncio.Future[None]) -> None:
        line = self._lines.get(owner)
        if line is not None and mine in line:
            line.remove(mine)
            if not line:
                del self._lines[owner]
        self._serve()
