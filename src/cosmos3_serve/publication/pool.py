"""Run the same work over many items, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Self, TypeVar

T = TypeVar("T")


async def each(items: Iterable[T], limit: int, work: Callable[[T], Awaitable[None]]) -> None:
    """Await `work(item)` for every item, at most `limit` at once; the first failure stops all and is raised."""
    remaining = iter(items)

    async def worker() -> None:
        for item in remaining:
            await work(item)

    tasks = [asyncio.create_task(worker()) for _ in range(limit)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Pool:
    """Work that is added one by one while other work goes on; at its end everything added is done, or one has failed.

    A failure is raised by the next `add`, or at the end; then, and when the block is left early, the rest is cancelled.
    """

    def __init__(self, limit: int) -> None:
        self._room, self._tasks = asyncio.Semaphore(limit), set[asyncio.Task[Any]]()
        self._failed: BaseException | None = None

    async def add(self, work: Coroutine[Any, Any, Any]) -> None:
        """Begin it, once fewer than the limit are under way."""
        try:
            await self._room.acquire()
        except BaseException:
            work.close()
            raise
        if self._failed is not None:
            work.close()
            raise self._failed
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._room.release()
        if not task.cancelled() and self._failed is None:
            self._failed = task.exception()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        try:
            while self._tasks and kind is None and self._failed is None:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            left = list(self._tasks)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        if kind is None and self._failed is not None:
            raise self._failed
