"""How many small downloads are in flight: more while they do not wait for each other, fewer when they do."""

from __future__ import annotations

import asyncio

import pytest

from cosmos3_serve.client.delivery.window import Window


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def one(window: Window, clock: Clock, seconds: float) -> None:
    async with window.place():
        clock.now += seconds


def window(clock: Clock, first: int = 8) -> Window:
    return Window(first, least=4, most=32, clock=clock)


async def test_it_grows_while_a_download_takes_as_long_as_the_fastest_and_not_past_its_bound() -> None:
    clock = Clock()
    made = window(clock)
    for _ in range(10):
        await one(made, clock, 0.2)
    assert made.size == 18
    for _ in range(100):
        await one(made, clock, 0.3)
    assert made.size == 32


async def test_it_shrinks_once_for_all_that_were_in_flight_when_they_wait_for_each_other() -> None:
    clock = Clock()
    made = window(clock)
    await one(made, clock, 0.1)
    assert made.size == 9
    await one(made, clock, 0.3)  # neither nor
    assert made.size == 9
    await one(made, clock, 1.0)
    assert made.size == 6.75
    clock.now += 0.01

    async def slow() -> None:
        async with made.place():
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(slow()) for _ in range(6)]
    await asyncio.sleep(0)
    assert made.in_flight == 6
    clock.now += 0.9
    await asyncio.gather(*tasks)
    assert made.size == 6.75 * 0.75  # for the first of the six
    for _ in range(50):
        await one(made, clock, 2.0)
    assert made.size == 4


async def test_trouble_halves_it_down_to_its_least() -> None:
    made = window(Clock(), first=16)
    made.trouble()
    assert made.size == 8
    made.trouble()
    made.trouble()
    assert made.size == 4


async def test_no_more_than_its_size_are_in_flight_and_the_next_takes_a_freed_place() -> None:
    made, go, most = Window(4, least=1, most=4), asyncio.Event(), 0

    async def held() -> None:
        nonlocal most
        async with made.place():
            most = max(most, made.in_flight)
            await go.wait()

    tasks = [asyncio.create_task(held()) for _ in range(12)]
    await asyncio.sleep(0.01)
    assert made.in_flight == 4
    for task in (tasks[0], tasks[5]):  # one with a place, one that waits
        task.cancel()
    await asyncio.sleep(0.01)
    assert made.in_flight == 4
    go.set()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(result, asyncio.CancelledError) for result in done) == 2
    assert (most, made.in_flight) == (4, 0)


async def test_what_fails_teaches_nothing_and_gives_its_place_back() -> None:
    clock = Clock()
    made = window(clock)
    with pytest.raises(OSError):
        async with made.place():
            raise OSError
    assert (made.size, made.in_flight) == (8, 0)
