"""Who has a part: one holder at a time whatever the clocks say, and the holder stops before another one begins."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.memory_store import Bucket, MemoryStore

from cosmos3_serve.errors import StorageFailure
from cosmos3_serve.queue.leases import RENEWALS, SAFE, Held, Leases, LocalWorkers
from cosmos3_serve.queue.place import QueuePlace
from cosmos3_serve.storage.location import Location

LEASE_S = 60.0


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def worker(bucket: Bucket, name: str, clock: Clock, lease_s: float = LEASE_S, **options: object) -> Leases:
    place = QueuePlace(Location(MemoryStore(bucket, seed=len(name)), "out", "s3://b/out/"))
    return Leases(place, name, lease_s, clock=clock, **options)  # type: ignore[arg-type]


async def take(leases: Leases, part: str = "p") -> Held | None:
    found = await leases.take(part, "http://service")
    return None if found is None else found[0]


async def test_one_of_many_gets_a_part() -> None:
    bucket = Bucket()
    found = await asyncio.gather(*(take(worker(bucket, f"w{i}", Clock())) for i in range(8)))
    assert len([held for held in found if held is not None]) == 1


async def test_a_lease_that_nobody_renews_is_taken_by_the_watchers_own_clock() -> None:
    """The clocks of the two differ by a day, and it does not matter."""
    bucket, mine = Bucket(), Clock(86_400.0)
    assert await take(worker(bucket, "dead", Clock()))
    other = worker(bucket, "other", mine)
    assert await take(other) is None
    mine.now += LEASE_S - 1
    assert await take(other) is None
    mine.now += 1
    assert await take(other) is not None


async def test_a_renewed_lease_is_left_alone() -> None:
    bucket, mine, theirs = Bucket(), Clock(), Clock()
    held = await take(worker(bucket, "holder", theirs))
    assert held is not None
    other = worker(bucket, "other", mine)
    for _ in range(10):
        assert await take(other) is None
        assert await held.renew()
        mine.now += LEASE_S


async def test_of_two_that_watched_one_gets_it() -> None:
    bucket, clock = Bucket(), Clock()
    await take(worker(bucket, "dead", Clock()))
    others = [worker(bucket, f"w{i}", clock) for i in range(6)]
    await asyncio.gather(*map(take, others))
    clock.now += LEASE_S
    assert len([held for held in await asyncio.gather(*map(take, others)) if held is not None]) == 1


async def test_a_holder_that_lost_its_lease_notices_at_its_next_renewal() -> None:
    bucket, clock = Bucket(), Clock()
    held = await take(worker(bucket, "slow", Clock()))
    assert held is not None
    other = worker(bucket, "other", clock)
    await take(other)
    clock.now += LEASE_S
    assert await take(other) is not None
    assert not await held.renew()


async def test_a_holder_stops_before_anybody_may_take_over() -> None:
    """Its own clock alone decides, from the start of its last renewal."""
    clock = Clock()
    held = await take(worker(Bucket(), "holder", clock))
    assert held is not None
    clock.now = SAFE * LEASE_S - 0.1
    assert held.left() > 0
    clock.now = SAFE * LEASE_S
    assert held.left() <= 0
    await asyncio.wait_for(held.keep(), 1)
    assert SAFE < 1


async def test_keep_ends_when_storage_is_away_for_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    place = QueuePlace(Location(MemoryStore(Bucket(), seed=1), "out", "s3://b/out/"))
    found = await Leases(place, "holder", 0.4, clock=time.monotonic).take("p", "")
    assert found is not None

    async def away(*args: object) -> None:
        raise StorageFailure("away", code="storage_unavailable")

    monkeypatch.setattr(place, "swap_lease", away)
    began = time.monotonic()
    await asyncio.wait_for(found[0].keep(), 5)
    assert time.monotonic() - began >= SAFE * 0.4 - 0.1, "it gave up before it had to"


async def test_a_renewal_whose_answer_was_lost_is_still_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    held = await take(worker(Bucket(), "holder", Clock()))
    assert held is not None
    before = held.info
    assert await held.renew()
    held.info = before  # as if the answer had not come
    assert await held.renew()
    assert await held.renew()


async def test_a_released_part_is_free_at_once_and_says_where_it_was() -> None:
    bucket = Bucket()
    first = worker(bucket, "first", Clock())
    held = await take(first)
    assert held is not None
    await held.release()
    found = await worker(bucket, "second", Clock()).take("p", "http://other")
    assert found is not None
    assert found[1] == "http://service"
    assert not await held.renew()


async def test_a_killed_worker_of_this_machine_is_known_at_once(tmp_path: Path) -> None:
    bucket, local = Bucket(), LocalWorkers(tmp_path)
    with local.alive("lives"):
        assert await take(worker(bucket, "lives", Clock()))
        assert await take(worker(bucket, "next", Clock(), dead=local.dead)) is None
    (tmp_path / "workers" / "lives").touch()  # as SIGKILL leaves it: the file, and no lock on it
    assert await take(worker(bucket, "next", Clock(), dead=local.dead)) is not None
    assert not local.dead("of-another-machine")
    assert not local.dead("../workers/lives")


async def test_a_holder_that_was_suspended_stops_when_it_wakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's timers stand still while the machine is suspended; the lease's clock does not."""
    slept = 0.0

    def gettime(clock: int) -> float:
        assert clock == time.CLOCK_BOOTTIME
        return boot() + slept

    boot = lambda get=time.clock_gettime: get(time.CLOCK_BOOTTIME)  # noqa: E731
    monkeypatch.setattr(time, "clock_gettime", gettime)
    place = QueuePlace(Location(MemoryStore(Bucket(), seed=1), "out", "s3://b/out/"))
    held = await take(Leases(place, "w", LEASE_S))
    assert held is not None
    keeping = asyncio.create_task(held.keep())
    await asyncio.sleep(0)
    slept = 2 * LEASE_S
    async with asyncio.timeout(LEASE_S / RENEWALS):
        await keeping
    assert held.left() < 0
