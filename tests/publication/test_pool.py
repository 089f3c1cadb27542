from __future__ import annotations

import asyncio

import pytest

from cosmos3_serve.publication.pool import each


async def test_all_are_done_a_few_at_a_time() -> None:
    done: list[int] = []
    running = most = 0

    async def work(item: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        done.append(item)
        running -= 1

    await each(range(20), 3, work)
    assert sorted(done) == list(range(20))
    assert most == 3


async def test_the_first_failure_stops_the_others() -> None:
    begun: list[int] = []
    stopped: list[int] = []

    async def work(item: int) -> None:
        begun.append(item)
        if item == 1:
            raise ValueError("one")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.append(item)
            raise

    with pytest.raises(ValueError, match="one"):
        await each(range(100), 3, work)
    assert 1 in begun and len(begun) <= 3
    assert sorted(stopped) == [item for item in sorted(begun) if item != 1]
