"""The loop of a worker, with parts done by a script: what happens to a part is decided here, not by the generator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.queues import Heard, until

from cosmos3_serve.errors import (
    Cosmos3Error,
    Incomplete,
    IntegrityError,
    StorageFailure,
    Unauthorized,
    Unreachable,
    ValidationFailed,
)
from cosmos3_serve.queue import worker as worker_module
from cosmos3_serve.queue.database import QueueDatabase
from cosmos3_serve.queue.endpoints import Endpoint, Fleet
from cosmos3_serve.queue.leases import Leases
from cosmos3_serve.queue.place import PLAN, QueuePlace
from cosmos3_serve.queue.records import FailedSample, Limits, PartResult, PartStatus, Plan, PlannedPart, Wanted
from cosmos3_serve.queue.work import Task
from cosmos3_serve.queue.worker import Worker

A, B = "http://a", "http://b"


def plan_of(parts: int) -> Plan:
    names = [f"{number:05}" for number in range(1, parts + 1)]
    return Plan(
        queue_id="q",
        created_at=0.0,
        source="in",
        source_sha256="0" * 64,
        limits=Limits(),
        parts=tuple(
            PlannedPart(name=name, request_id=f"q-{name}", samples=2, bytes=1, sha256="0" * 64) for name in names
        ),
    )


class Script:
    """A runner; `act` decides what an attempt does before it publishes."""

    def __init__(self, place: QueuePlace, act: Callable[[Task], Any] | None = None) -> None:
        self.place, self.act = place, act
        self.tasks: list[Task] = []
        self.cancelled: list[Task] = []
        self.cut: list[str] = []
        self.gone: set[str] = set()

    async def run(self, task: Task, done: Callable[[int], None]) -> PartResult:
        self.tasks.append(task)
        try:
            if self.act is not None and (found := self.act(task)) is not None:
                await found
        except asyncio.CancelledError:
            self.cut.append(task.part.name)
            raise
        done(task.part.samples)
        key = self.place.part_key(task.part.name, "provenance.json")
        with suppress(Cosmos3Error):
            await self.place.store.put_bytes(key, task.part.name.encode(), create=True)
        return PartResult(
            name=task.part.name, status=PartStatus.COMPLETED, samples=task.part.samples, succeeded=task.part.samples
        )

    async def give_up(self, task: Task, error: Cosmos3Error) -> PartResult:
        failed = tuple(FailedSample(name=f"s{i}", code=error.stable_code) for i in range(task.part.samples))
        return PartResult(name=task.part.name, status=PartStatus.FAILED, samples=task.part.samples, succeeded=0,
                          code=error.stable_code, failed=failed)  # fmt: skip

    async def cancel(self, task: Task) -> None:
        self.cancelled.append(task)

    async def check(self, endpoint: str) -> bool:
        return endpoint not in self.gone


class Bench:
    def __init__(self, tmp: Path, parts: int = 4) -> None:
        self.tmp, self.plan = tmp, plan_of(parts)
        self.place = QueuePlace.at(str(tmp / "out"))
        self.heard = Heard()

    async def worker(
        self,
        script: Script,
        name: str = "w",
        *,
        endpoints: tuple[str, ...] = (A,),
        lease_s: float = 5.0,
        **options: Any,
    ) -> Worker:
        await self.place.create(PLAN, self.plan.to_bytes())
        database = QueueDatabase(self.tmp / name)
        database.load_plan(self.plan)
        fleet = Fleet([Endpoint(address) for address in endpoints], 2, script.check)
        leases = Leases(self.place, name, lease_s)
        return Worker(self.place, self.plan, database, leases, fleet, script, self.heard, **options)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LOOK_S": 0.05, "REFRESH_S": 0.1, "BUSY_S": 0.1, "AGAIN_S": (0.01, 0.05)}.items():
        monkeypatch.setattr(worker_module, name, value)


async def test_a_lost_lease_stops_the_part_before_it_is_published(bench: Bench) -> None:
    script = Script(bench.place, lambda task: asyncio.sleep(3600) if len(script.tasks) == 1 else None)
    first = asyncio.create_task((await bench.worker(script, "slow", lease_s=1.0)).run())
    await until(lambda: script.tasks)
    lost = script.tasks[0].part.name
    thief = Leases(bench.place, "thief", 1.0, dead=lambda worker: True)
    taken = await thief.take(lost, A)
    assert taken is not None
    await until(lambda: lost in script.cut)
    assert await bench.place.store.head(bench.place.part_key(lost, "provenance.json")) is None
    assert not (await bench.place.ended()) & {lost}
    await taken[0].release()
    index = await first
    assert index.status == "completed"
    assert [task.part.name for task in script.tasks].count(lost) == 2


async def test_a_lease_that_cannot_be_renewed_stops_the_part(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker takes the part at the end of the lease, so it must not go on until storage answers again."""
    script = Script(bench.place, lambda task: asyncio.sleep(3600) if len(script.tasks) == 1 else None)
    worker = await bench.worker(script, lease_s=0.6)
    running = asyncio.create_task(worker.run())
    await until(lambda: script.tasks)
    swap = bench.place.swap_lease

    async def away(*args: Any) -> None:
        raise StorageFailure("away", code="storage_unavailable")

    monkeypatch.setattr(bench.place, "swap_lease", away)
    await until(lambda: script.cut)
    monkeypatch.setattr(bench.place, "swap_lease", swap)
    assert (await running).status == "completed"


async def test_two_workers_do_every_part_once(bench: Bench, tmp_path: Path) -> None:
    bench = Bench(tmp_path / "more", parts=30)
    script = Script(bench.place, lambda task: asyncio.sleep(0.01))
    workers = [await bench.worker(script, name) for name in ("one", "two")]
    first, second = await asyncio.gather(*(worker.run() for worker in workers))
    assert first == second
    assert sorted(task.part.name for task in script.tasks) == [part.name for part in bench.plan.parts]


async def test_parts_of_a_service_that_went_away_move(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosmos3_serve.queue.endpoints.WATCH_S", 0.02)
    script = Script(bench.place, lambda task: asyncio.sleep(3600) if task.endpoint == A else None)
    running = asyncio.create_task((await bench.worker(script, endpoints=(A, B))).run())
    await until(lambda: [task for task in script.tasks if task.endpoint == A])
    script.gone = {A}
    index = await running
    assert index.status == "completed"
    assert script.cut
    moved = [task for task in script.tasks if task.part.name in script.cut]
    assert moved[-1].endpoint == B
    assert moved[-1].known


async def test_a_service_that_refuses_us_is_not_asked_again(bench: Bench) -> None:
    def act(task: Task) -> None:
        if task.endpoint == A:
            raise Unauthorized("no")

    script = Script(bench.place, act)
    index = await (await bench.worker(script, endpoints=(A, B))).run()
    assert index.status == "completed"
    assert len([task for task in script.tasks if task.endpoint == A]) <= 2, "two parts at once, then no more"


async def test_when_every_service_refuses_the_reason_is_told(bench: Bench) -> None:
    def act(task: Task) -> None:
        raise Unauthorized("the token is wrong")

    with pytest.raises(Unauthorized, match="the token is wrong"):
        await (await bench.worker(Script(bench.place, act))).run()
    lease = await bench.place.lease("00001")
    assert lease is not None
    assert lease[1].released


async def test_no_service_for_too_long_ends_resumable(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosmos3_serve.queue.endpoints.AWAY_S", (0.01, 0.02))

    def act(task: Task) -> None:
        raise Unreachable("nobody there")

    with pytest.raises(Incomplete, match="nobody there") as ended:
        await (await bench.worker(Script(bench.place, act), patience_s=0.3)).run()
    assert (ended.value.stable_code, ended.value.exit_code) == ("queue_stalled", 5)


async def test_attempts_are_counted_over_restarts(bench: Bench) -> None:
    def act(task: Task) -> None:
        if task.part.name == "00002":
            raise IntegrityError("other bytes")

    script = Script(bench.place, act)
    index = await (await bench.worker(script, attempts=3)).run()
    assert (index.status, index.failed) == ("partial", 2)
    assert index.parts[1].code == "integrity_mismatch"
    assert len([task for task in script.tasks if task.part.name == "00002"]) == 3


async def test_cancel_ends_running_parts_at_their_services(bench: Bench) -> None:
    from cosmos3_serve.queue.records import Control

    script = Script(bench.place, lambda task: asyncio.sleep(3600))
    running = asyncio.create_task((await bench.worker(script)).run())
    await until(lambda: len(script.tasks) == 2)
    await bench.place.set_control(Control(wanted=Wanted.CANCELLED))
    with pytest.raises(Incomplete) as ended:
        await running
    assert ended.value.stable_code == "queue_cancelled"
    assert {task.part.name for task in script.cancelled} == {"00001", "00002"}


async def test_an_altered_part_is_not_indexed(bench: Bench) -> None:
    def act(task: Task) -> Any:
        if task.part.name == "00004":
            return bench.place.store.put_bytes(bench.place.part_key("00001", "provenance.json"), b"other")
        return None

    with pytest.raises(IntegrityError) as found:
        await (await bench.worker(Script(bench.place, act))).run()
    assert found.value.stable_code == "part_altered"
    assert await bench.place.index() is None


async def test_another_index_is_never_overwritten(bench: Bench) -> None:
    await bench.place.create("index.json", b'{"not": "ours"}')
    with pytest.raises(StorageFailure) as found:
        await (await bench.worker(Script(bench.place))).run()
    assert found.value.stable_code == "queue_damaged"


async def test_storage_that_is_away_for_a_result_costs_no_part(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    add, left = bench.place.add_result, 5

    async def away(result: PartResult) -> PartResult:
        nonlocal left
        left -= 1
        if left >= 0:
            raise StorageFailure("away", code="storage_unavailable")
        return await add(result)

    monkeypatch.setattr(bench.place, "add_result", away)
    index = await (await bench.worker(Script(bench.place))).run()
    assert index.status == "completed"
    assert left < 0


async def test_storage_that_is_away_for_the_verdict_costs_no_part(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that is given up is recorded at the place, too."""
    script = Script(bench.place, lambda task: (_ for _ in ()).throw(ValidationFailed("never")))
    add, left = bench.place.add_result, 5

    async def away(result: PartResult) -> PartResult:
        nonlocal left
        left -= 1
        if left >= 0:
            raise StorageFailure("away", code="storage_unavailable")
        return await add(result)

    monkeypatch.setattr(bench.place, "add_result", away)
    index = await (await bench.worker(script)).run()
    assert (index.status, index.failed) == ("failed", 8)
