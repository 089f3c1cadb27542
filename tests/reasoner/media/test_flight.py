"""The same work at the same time is done once; leaving and failing concern who leaves and what fails."""

import asyncio

import pytest

from cosmos3_serve.reasoner.media.flight import Flights


class Work:
    def __init__(self) -> None:
        self.started = self.cancelled = 0
        self.release = asyncio.Event()
        self.fail = False

    async def __call__(self) -> int:
        self.started += 1
        number = self.started
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.fail:
            raise RuntimeError("no")
        return number


async def spin() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_run_for_all_and_a_new_one_afterwards() -> None:
    flights: Flights[str, int] = Flights()
    work = Work()
    tasks = [asyncio.ensure_future(flights.join("k", work)) for _ in range(5)]
    other = asyncio.ensure_future(flights.join("other", work))
    await spin()
    assert len(flights) == 2
    work.release.set()
    assert await asyncio.gather(*tasks) == [1] * 5
    assert await other == 2
    assert len(flights) == 0
    assert await flights.join("k", work) == 3


async def test_a_failure_goes_to_all_and_is_not_kept() -> None:
    flights: Flights[str, int] = Flights()
    work = Work()
    work.fail = True
    tasks = [asyncio.ensure_future(flights.join("k", work)) for _ in range(3)]
    await spin()
    work.release.set()
    assert all(isinstance(r, RuntimeError) for r in await asyncio.gather(*tasks, return_exceptions=True))
    work.fail = False
    assert await flights.join("k", work) == 2


async def test_the_work_goes_on_while_anyone_waits_and_ends_with_the_last() -> None:
    flights: Flights[str, int] = Flights()
    work = Work()
    first, second = (asyncio.ensure_future(flights.join("k", work)) for _ in range(2))
    await spin()
    first.cancel()
    await spin()
    assert work.cancelled == 0
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert work.cancelled == 1
    assert len(flights) == 0
    work.release.set()
    assert await flights.join("k", work) == 2, "who comes later starts anew"
