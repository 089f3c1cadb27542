"""WaitingLine: where questions stand while every replica is full. Bounded in number and time.

The router itself never waits: it says `fleet_saturated`. Whoever is told so stands here and asks again when something
may have changed (`wake`). One asks at a time: the first in line for whom there is room. A question that no free replica
takes, because it was refused there a moment ago or asks for too many answers, holds nobody up who stands behind it.

The order is fair between owners (start-time fair queuing): a question is served as if its owner's answers came one
after the other, so two questions with `n=40` of one client do not stand in front of the plain ones of another. Those of
one owner are served first come first served.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeVar

from cosmos3_serve.errors import QueueFull

T = TypeVar("T")
SATURATED = "fleet_saturated"
LEAVE_RETRY_S = 2.0


@dataclass(slots=True, eq=False)
class _Waiter:
    """`shape`: waiters of equal shape have room at the same time. `tried`: in this round, in vain."""

    tag: float
    number: int
    room: Callable[[], bool]
    shape: Hashable
    n: int
    event: asyncio.Event = field(default_factory=asyncio.Event)
    tried: int = -1


def _place(waiter: _Waiter) -> tuple[float, int]:
    return waiter.tag, waiter.number


class WaitingLine:
    """
    Args:
        limit: how many may wait.
        timeout_s: how long one may wait.
    """

    def __init__(self, limit: int, timeout_s: float) -> None:
        self.limit, self.timeout_s = limit, timeout_s
        self._line: list[_Waiter] = []
        self._asking: _Waiter | None = None
        self._round = 0
        self._number = 0
        self._served = 0.0  # the tag of the last question placed: newcomers start from here
        self._ends: dict[str, float] = {}  # owner -> where its next question starts
        self.refused = 0

    def __len__(self) -> int:
        return len(self._line)

    @property
    def answers(self) -> int:
        """That those who wait will ask for."""
        return sum(waiter.n for waiter in self._line)

    def wake(self) -> None:
        """A place may be free."""
        self._round += 1
        self._next()

    async def place(
        self,
        choose: Callable[[], Awaitable[T]],
        *,
        room: Callable[[], bool] = lambda: True,
        shape: Hashable = None,
        owner: str = "",
        n: int = 1,
        waits: Callable[[], None] = lambda: None,
    ) -> T:
        """What `choose` gives, as soon as it is this caller's turn and it says something else than `fleet_saturated`.

        Args:
            room: whether some replica would take the question now; cheap.
            shape: callers of equal shape have room at the same time.
            owner: who waits; `n`: for how many answers.
            waits: called before the caller has to wait.

        Raises:
            QueueFull: code `queue_full`: too many wait, or the wait was too long.
            Cosmos3Error: as `choose`.
        """
        # Past the limit a question is still placed where nobody in line could be.
        if not self._line or (len(self._line) >= self.limit and self._first() is None and room()):
            try:
                return await choose()
            except QueueFull as full:
                if full.stable_code != SATURATED:
                    raise
        if len(self._line) >= self.limit:
            self.refused += 1
            raise self._full(f"every replica is full and {self.limit} questions wait")
        waits()
        waiter = self._enter(room, shape, owner, n)
        try:
            self.wake()
            async with asyncio.timeout(self.timeout_s):
                return await self._wait(waiter, choose)
        except TimeoutError:
            self.refused += 1
            raise self._full(f"no replica was free for {self.timeout_s:g} seconds") from None
        finally:
            self._line.remove(waiter)
            if self._asking is waiter:
                self._asking = None
            if not self._line:
                self._ends.clear()
                self._served = 0.0
            self.wake()  # perhaps there is room for the next as well

    def _enter(self, room: Callable[[], bool], shape: Hashable, owner: str, n: int) -> _Waiter:
        tag = max(self._served, self._ends.get(owner, 0.0))
        if len(self._ends) > 2 * len(self._line) + 64:
            self._ends = {name: end for name, end in self._ends.items() if end > self._served}
        self._ends[owner] = tag + n
        self._number += 1
        waiter = _Waiter(tag, self._number, room, shape, n)
        insort(self._line, waiter, key=_place)
        return waiter

    async def _wait(self, waiter: _Waiter, choose: Callable[[], Awaitable[T]]) -> T:
        while True:
            await waiter.event.wait()
            waiter.event.clear()
            waiter.tried = self._round
            try:
                placed = await choose()
                self._served = max(self._served, waiter.tag)
                return placed
            except QueueFull as full:
                if full.stable_code != SATURATED:
                    raise
            self._asking = None
            self._next()

    def _next(self) -> None:
        """Let the first one ask for whom there is room and who has not asked in this round."""
        if self._asking is None and (waiter := self._first()) is not None:
            self._asking = waiter
            waiter.event.set()

    def _first(self) -> _Waiter | None:
        known: dict[Hashable, bool] = {}
        for waiter in self._line:
            if waiter.tried == self._round:
                continue
            has_room = known.get(waiter.shape)
            if has_room is None:
                has_room = known[waiter.shape] = waiter.room()
            if has_room:
                return waiter
        return None

    def _full(self, detail: str) -> QueueFull:
        return QueueFull(detail, remedy="send it again a little later", retry_after_s=LEAVE_RETRY_S)
