"""Turns: only samples that may share an inference call are with upstream at the same time.

Upstream coalesces whatever arrives together, fails all of it when it may not be mixed, and cannot be asked. The
coordinator sends one wave at a time; the canary and the probe do not go through it, so the rule is kept here, where
every call passes. Upstream runs one batch at a time anyway: waiting for a turn costs nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Turn:
    """Calls that were with the engine together.

    Attributes:
        key: what they have in common.
        since: monotonic seconds.
        shapes: shape of each call, in order of entry; its length is how many there were.
        inside: how many have not left.
    """

    key: Hashable
    since: float = field(default_factory=time.monotonic)
    shapes: list[Hashable] = field(default_factory=list)
    inside: int = 0


@dataclass(slots=True, eq=False)
class _Waiter:
    key: Hashable
    shape: Hashable
    seat: asyncio.Future[tuple[Turn, int]]


class Turns:
    """Args: `limit`: calls in one turn; a further call waits for the next."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._turn: Turn | None = None
        self._waiting: deque[_Waiter] = deque()

    @property
    def age_s(self) -> float | None:
        """How long the present turn has lasted; None when nobody is inside."""
        return None if self._turn is None else time.monotonic() - self._turn.since

    @asynccontextmanager
    async def enter(self, key: Hashable, shape: Hashable = None) -> AsyncIterator[tuple[Turn, int]]:
        """The turn and the seat in it (from 0). First come, first served: nobody overtakes."""
        seat = self._sit(key, shape) if not self._waiting else None
        if seat is None:
            waiter = _Waiter(key, shape, asyncio.get_running_loop().create_future())
            self._waiting.append(waiter)
            try:
                seat = await waiter.seat
            except asyncio.CancelledError:
                if waiter.seat.done() and not waiter.seat.cancelled():
                    self._leave(waiter.seat.result()[0])
                else:
                    self._waiting.remove(waiter)
                    self._admit()
                raise
        try:
            yield seat
        finally:
            self._leave(seat[0])

    def _sit(self, key: Hashable, shape: Hashable) -> tuple[Turn, int] | None:
        if self._turn is None:
            self._turn = Turn(key)
        turn = self._turn
        if turn.key != key or len(turn.shapes) >= self._limit:
            return None
        turn.shapes.append(shape)
        turn.inside += 1
        return turn, len(turn.shapes) - 1

    def _leave(self, turn: Turn) -> None:
        turn.inside -= 1
        if turn.inside == 0 and self._turn is turn:
            self._turn = None
            self._admit()

    def _admit(self) -> None:
        while self._waiting:
            first = self._waiting[0]
            if first.seat.done():  # cancelled; it takes itself out
                break
            seat = self._sit(first.key, first.shape)
            if seat is None:
                break
            self._waiting.popleft()
            first.seat.set_result(seat)
