"""Flights: the same work asked for several times at once is done once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Flights(Generic[K, V]):
    """Keyed tasks with several waiters. A waiter that is cancelled leaves; when the last one leaves, the work ends."""

    def __init__(self) -> None:
        self._tasks: dict[K, tuple[asyncio.Task[V], list[int]]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    async def join(self, key: K, work: Callable[[], Awaitable[V]]) -> V:
        """The result of `work`, run now unless the same key is under way. Its exception goes to every waiter."""
        found = self._tasks.get(key)
        if found is None:

            async def run() -> V:
                try:
                    return await work()
                finally:
                    if self._tasks.get(key, (None,))[0] is asyncio.current_task():
                        del self._tasks[key]

            found = self._tasks[key] = (asyncio.ensure_future(run()), [0])
        task, waiters = found
        waiters[0] += 1
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if waiters[0] == 1 and not task.done():
                self._tasks.pop(key, None)
                task.cancel()
                await asyncio.wait([task])
            raise
        finally:
            waiters[0] -= 1
