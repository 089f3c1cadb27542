"""Supervisor: each way in which a worker is lost ends in a new replica, and nothing else does."""

import asyncio
from collections.abc import Callable

import pytest

from cosmos3_serve.errors import EngineFailed
from cosmos3_serve.generator.engines.framework.supervisor import Supervisor


class World:
    """A scripted engine and its workers."""

    def __init__(self) -> None:
        self.replacing = False
        self.busy_s: float | None = None
        self.idle_s = 0.0
        self.lost = 0
        self.up = True
        self.probes = 0
        self.replaced = 0
        self.fails: Exception | None = None
        self.hangs = False
        self.on_replaced: Callable[[], object] = lambda: None

    def serving(self) -> bool:
        return self.up

    def missing(self) -> int:
        return self.lost

    async def probe(self, **prompt: str) -> str:
        self.probes += 1
        if self.hangs:
            await asyncio.sleep(3600)
        if self.fails:
            raise self.fails
        self.idle_s = 0.0
        return prompt["prompt"]

    async def replace(self) -> None:
        self.replaced += 1
        self.on_replaced()


def watching(world: World) -> Supervisor:
    return Supervisor(world, world, look_s=0.01, batch_s=330, idle_s=300, probe_s=0.05)


async def test_all_is_well() -> None:
    assert [await watching(World()).look() for _ in range(3)] == ["", "", ""]


async def test_a_dead_worker_is_seen_on_the_second_look() -> None:
    world = World()
    world.lost = 1
    watch = watching(world)
    assert await watch.look() == ""
    assert "1 workers are not alive" in await watch.look()


async def test_a_worker_that_only_starts_is_not_lost() -> None:
    world = World()
    watch = watching(world)
    world.lost = 1
    await watch.look()
    world.lost = 0
    assert await watch.look() == ""
    world.lost = 1
    assert await watch.look() == ""


@pytest.mark.parametrize(("busy_s", "lost"), [(10.0, False), (329.0, False), (331.0, True)])
async def test_a_batch_beyond_upstreams_own_limit_means_a_wedged_replica(busy_s: float, lost: bool) -> None:
    world = World()
    world.busy_s, world.idle_s = busy_s, 10_000.0
    assert bool(await watching(world).look()) is lost
    assert world.probes == 0, "a probe would wait behind the batch"


async def test_a_quiet_engine_is_probed_and_passes() -> None:
    world = World()
    world.idle_s = 301
    watch = watching(world)
    assert await watch.look() == "" and world.probes == 1
    assert await watch.look() == "" and world.probes == 1


async def test_a_probe_that_hangs_or_fails_condemns() -> None:
    world = World()
    world.idle_s, world.hangs = 301, True
    assert "was not answered" in await watching(world).look()
    world.hangs, world.fails = False, EngineFailed("x")
    assert "failed (EngineFailed)" in await watching(world).look()


async def test_nothing_is_judged_while_a_replica_loads() -> None:
    world = World()
    world.lost, world.replacing = 1, True
    watch = watching(world)
    assert [await watch.look() for _ in range(3)] == [""] * 3
    world.replacing, world.up = False, False
    assert [await watch.look() for _ in range(3)] == [""] * 3


async def test_it_replaces_and_goes_on_after_its_own_failures() -> None:
    world = World()
    world.lost = 1
    twice = asyncio.Event()
    world.on_replaced = lambda: twice.set() if world.replaced == 2 else None
    task = asyncio.create_task(watching(world).run())
    try:
        async with asyncio.timeout(5):
            await twice.wait()
    finally:
        task.cancel()
