from __future__ import annotations

import asyncio

import pytest

from cosmos3_serve.publication.pool import Pool, each


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


async def test_a_pool_ends_what_was_added_and_keeps_its_limit() -> None:
    running = most = done = 0

    async def work() -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        done += 1

    async with Pool(3) as pool:
        for _ in range(20):
            await pool.add(work())
    assert (done, most) == (20, 3)


@pytest.mark.parametrize("more", [True, False])
async def test_a_failure_in_a_pool_is_raised_and_cancels_the_rest(more: bool) -> None:
    cancelled = 0

    async def waits() -> None:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled += 1
            raise

    async def fails() -> None:
        raise ValueError("one")

    with pytest.raises(ValueError, match="one"):
        async with Pool(3) as pool:
            await pool.add(waits())
            await pool.add(fails())
            await asyncio.sleep(0.01)
            if more:
                await pool.add(waits())
    assert cancelled == 1


async def test_leaving_a_pool_early_cancels_what_runs() -> None:
    stopped = asyncio.Event()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    with pytest.raises(KeyError):
        async with Pool(2) as pool:
            await pool.add(waits())
            await asyncio.sleep(0)
            raise KeyError
    assert stopped.is_set()
