"""The worker: one result per sample whatever the engine does, and no caller who can harm another."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.fakes import until

from cosmos3_serve.contract.profile import diffusers_profile
from cosmos3_serve.contract.resolve import resolve_sample
from cosmos3_serve.contract.sample import SampleOverrides
from cosmos3_serve.errors import SampleCode, SampleError
from cosmos3_serve.generator.engines.job import EngineJob, EngineResult, WaveRecord
from cosmos3_serve.generator.replica.worker import MAX_FAILURES, Call, EngineWorker, inference_batches

PROFILE = diffusers_profile("0.42.1", tiny=True)


def job(name: str, request_id: str = "r", **fields: Any) -> EngineJob:
    overrides = SampleOverrides.model_validate({"name": name, "prompt": "x", "num_frames": 1} | fields)
    args = resolve_sample(overrides, PROFILE, seed=1).model_dump(mode="json")
    return EngineJob(request_id=request_id, name=name, output_dir=f"/out/{request_id}/{name}", args=args)


def calls(*jobs: EngineJob) -> list[Call]:
    return [Call(j) for j in jobs]


class FakeEngine:
    """Each item is the job itself; `hold` blocks denoising, `on_finish` may raise."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.hold: threading.Event | None = None
        self.on_denoise: Callable[[Sequence[EngineJob]], Any] | None = None
        self.on_finish: Callable[[Any], None] = lambda item: None
        self.threads: set[str] = set()
        self.finish_started = threading.Event()
        self.checks = 0
        self.on_load: Callable[[EngineJob], None] = lambda job: None
        self.loaded: list[str] = []
        self.unloaded: list[str] = []

    def load(self, job: EngineJob) -> None:
        self.threads.add(threading.current_thread().name.split("_")[0])
        self.on_load(job)
        self.loaded.append(job.name)

    def unload(self, job: EngineJob) -> None:
        self.unloaded.append(job.name)

    def denoise(self, jobs: Sequence[EngineJob], on_step: Any, is_cancelled: Any) -> list[Any]:
        self.batches.append([j.name for j in jobs])
        self.threads.add(threading.current_thread().name.split("_")[0])
        for step in (1, 2):
            for j in jobs:
                on_step(j.key, step, 2)
            if self.hold:
                self.hold.wait(10)
        if self.on_denoise:
            found = self.on_denoise(jobs)
            if found is not None:
                return found  # type: ignore[no-any-return]
        return [SampleError(SampleCode.CANCELLED, "stopped") if is_cancelled(j.key) else j for j in jobs]

    def finish(self, item: Any) -> EngineResult:
        self.threads.add(threading.current_thread().name.split("_")[0])
        self.finish_started.set()
        self.on_finish(item)
        wave = WaveRecord(inference_id="i", inference_batch=len(self.batches[-1]), slot=0)
        return EngineResult(name=item.name, outputs={"outputs": []}, wave=wave)

    def check(self) -> None:
        self.checks += 1


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def worker(engine: FakeEngine) -> EngineWorker:
    return EngineWorker(engine, max_num_seqs=2)


async def test_a_coalesced_batch_is_split_by_limit_and_labelled_as_one(
    engine: FakeEngine, worker: EngineWorker
) -> None:
    results = await worker.run(calls(job("a"), job("b"), job("c")))
    assert engine.batches == [["a", "b"], ["c"]]
    assert [r.name for r in results] == ["a", "b", "c"]
    assert {r.wave.coalesced for r in results} == {3} and len({r.wave.coalesced_id for r in results}) == 1
    assert engine.threads == {"load", "denoise", "finish"}
    assert engine.loaded == ["a", "b", "c"] and sorted(set(engine.unloaded)) == ["a", "b", "c"]


def test_what_may_not_share_is_kept_apart_and_order_is_kept() -> None:
    a, b, c, d = job("a"), job("b", num_steps=3), job("c"), job("d", num_steps=3)
    assert [[x.job.name for x in g] for g in inference_batches(calls(a, b, c, d), 8)] == [["a", "c"], ["b", "d"]]
    same_key = calls(job("a"), job("a"))
    assert [len(g) for g in inference_batches(same_key, 8)] == [1, 1]
    broken = EngineJob(request_id="r", name="z", output_dir="/out", args={"num_steps": "many"})
    assert [[x.job.name for x in g] for g in inference_batches(calls(a, broken, c), 8)] == [["a", "c"], ["z"]]


@pytest.mark.parametrize("answer", ["raise", "short", "long", "none"])
async def test_an_engine_that_breaks_gives_every_caller_a_typed_error_and_the_next_batch_works(
    answer: str, engine: FakeEngine, worker: EngineWorker
) -> None:
    def broken(jobs: Sequence[EngineJob]) -> Any:
        if answer == "raise":
            raise RuntimeError("a prompt about a secret horse")
        return {"short": list(jobs)[:-1], "long": [*jobs, *jobs], "none": []}[answer]

    engine.on_denoise = broken
    results = await worker.run(calls(job("a"), job("b")))
    assert [r.error.code for r in results if r.error] == [SampleCode.ENGINE_FAILED] * 2
    assert "horse" not in repr(results)
    engine.on_denoise = None
    assert [r.error for r in await worker.run(calls(job("c"), job("d")))] == [None, None]


async def test_one_item_that_fails_leaves_its_neighbours_alone(engine: FakeEngine, worker: EngineWorker) -> None:
    def refuse_b(item: Any) -> None:
        if item.name == "b":
            raise OSError("disk full")

    engine.on_finish = refuse_b
    results = await worker.run(calls(job("a"), job("b"), job("c")))
    assert [r.error and r.error.code for r in results] == [None, SampleCode.ENGINE_FAILED, None]


async def test_memory_that_ran_out_has_its_own_code(engine: FakeEngine, worker: EngineWorker) -> None:
    def exhausted(_: Any) -> Any:
        raise MemoryError

    engine.on_denoise = exhausted
    results = await worker.run(calls(job("a")))
    assert results[0].error and results[0].error.code is SampleCode.OUT_OF_MEMORY


async def test_the_next_batch_denoises_while_one_is_being_finished(engine: FakeEngine, worker: EngineWorker) -> None:
    gate = threading.Event()
    engine.on_finish = lambda item: gate.wait(10) and None
    first = asyncio.create_task(worker.run(calls(job("a"))))
    await asyncio.to_thread(engine.finish_started.wait, 10)
    second = asyncio.create_task(worker.run(calls(job("b"))))
    for _ in range(200):
        if len(engine.batches) == 2:
            break
        await asyncio.sleep(0.01)
    assert engine.batches == [["a"], ["b"]] and not first.done()
    gate.set()
    await asyncio.gather(first, second)


async def test_the_media_of_the_next_batch_are_read_while_one_denoises(
    engine: FakeEngine, worker: EngineWorker
) -> None:
    engine.hold = threading.Event()
    first = asyncio.create_task(worker.run(calls(job("a"))))
    await until(lambda: engine.batches == [["a"]])
    second = asyncio.create_task(worker.run(calls(job("b"), job("c"))))
    await until(lambda: engine.loaded == ["a", "b", "c"])
    assert engine.batches == [["a"]], "the first still denoises"
    engine.hold.set()
    await asyncio.gather(first, second)


async def test_a_sample_whose_media_are_still_read_waits_for_them_and_keeps_nobody_else_waiting(
    engine: FakeEngine, worker: EngineWorker
) -> None:
    gate = threading.Event()
    engine.on_load = lambda job: gate.wait(10) and None if job.name == "slow" else None
    first = asyncio.create_task(worker.run(calls(job("a"))))
    await first
    slow = asyncio.create_task(worker.run(calls(job("slow"))))
    await asyncio.sleep(0.05)
    assert engine.batches == [["a"]]
    gate.set()
    assert [r.error for r in await slow] == [None] and engine.batches == [["a"], ["slow"]]


async def test_reading_ahead_that_fails_or_was_cancelled_leaves_nothing_and_costs_nothing(
    engine: FakeEngine, worker: EngineWorker
) -> None:
    def fail(job: EngineJob) -> None:
        raise OSError("the disk")

    engine.on_load = fail
    assert [r.error for r in await worker.run(calls(job("a")))] == [None]
    engine.on_load = lambda job: None
    entered = [worker.enter(job(n)) for n in ("b", "c")]
    worker.leave(entered[0], cancelled=True)
    await worker.run(entered)
    assert engine.loaded == ["c"]
    await until(lambda: {"a", "b", "c"} <= set(engine.unloaded))


async def test_progress_and_cancel_reach_a_running_sample_only(engine: FakeEngine, worker: EngineWorker) -> None:
    engine.hold = threading.Event()
    entered = [worker.enter(job(n)) for n in ("a", "b")]
    running = asyncio.create_task(worker.run(entered))
    for _ in range(200):
        if worker.progress():
            break
        await asyncio.sleep(0.01)
    assert worker.progress() == {"r/a": (1, 2), "r/b": (1, 2)}
    worker.cancel(["r/b", "unknown/key"])
    worker.leave(entered[0], cancelled=False)
    assert set(worker.progress()) == {"r/b"}
    engine.hold.set()
    results = await running
    assert [r.error and r.error.code for r in results] == [None, SampleCode.CANCELLED]
    worker.leave(entered[1], cancelled=False)
    assert worker.progress() == {}


async def test_a_caller_who_leaves_stops_only_its_own_sample(engine: FakeEngine, worker: EngineWorker) -> None:
    entered = [worker.enter(job(n)) for n in ("a", "b")]
    worker.leave(entered[0], cancelled=True)
    again = worker.enter(job("a"))  # the same sample asked for anew is another call
    results = await worker.run([*entered, again])
    assert [r.error and r.error.code for r in results] == [SampleCode.CANCELLED, None, None]


async def test_health_asks_the_device_when_idle_and_trusts_progress_when_not(
    engine: FakeEngine, worker: EngineWorker
) -> None:
    await worker.check()
    assert engine.checks == 1
    engine.hold = threading.Event()
    running = asyncio.create_task(worker.run(calls(job("a"))))
    await asyncio.sleep(0.05)
    await worker.check()
    assert engine.checks == 1
    engine.hold.set()
    await running


async def test_an_engine_that_only_fails_is_not_trusted_for_ever(engine: FakeEngine, worker: EngineWorker) -> None:
    engine.on_denoise = lambda jobs: []
    for _ in range(MAX_FAILURES - 1):
        await worker.run(calls(job("a")))
    await worker.check()
    engine.on_denoise = None
    await worker.run(calls(job("a")))  # one success clears the record
    engine.on_denoise = lambda jobs: []
    for _ in range(MAX_FAILURES):
        await worker.run(calls(job("a")))
    with pytest.raises(RuntimeError, match="in a row"):
        await worker.check()
