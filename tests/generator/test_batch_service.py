"""Batches: what is refused leaves no trace, what is known is the same batch, what a restart finds goes on."""

from __future__ import annotations

import asyncio
import errno
import gc
import sqlite3
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from support.core import PROFILE, Core, MakeCore, image
from support.disks import failing_disk
from support.fake_engine import INFO, FakeEngine
from support.fakes import until

from cosmos3_serve.contract.batch import BatchRequest
from cosmos3_serve.contract.parse import parse_batch
from cosmos3_serve.contract.views import BatchState
from cosmos3_serve.errors import (
    Conflict,
    Cosmos3Error,
    Draining,
    InvalidRequestId,
    LimitExceeded,
    ModelNotLoaded,
    ModeNotSupported,
    NotReady,
    QueueFull,
    StorageAuthorizationError,
    ValidationFailed,
)
from cosmos3_serve.generator import batch_service as batches


async def refused(core: Core, kind: type[Cosmos3Error], *samples: Any, **fields: Any) -> Cosmos3Error:
    """Submit, expect a refusal, and prove that nothing of the batch is left and its id is free."""
    request = BatchRequest(samples=list(samples), request_id="r1", **fields)
    with pytest.raises(kind) as caught:
        await core.coordinator.submit(request, tenant="t")
    assert not (core.root / ".cosmos3" / "ledger" / "r1").exists() and not (core.root / "r1").exists()
    assert core.coordinator.stats().depth == 0
    assert core.coordinator._ledger.find("r1") is None
    return caught.value


async def test_a_refusal_names_everything_wrong_and_does_not_burn_the_id(core: Core) -> None:
    error = await refused(
        core,
        ValidationFailed,
        image("a", num_steps=0),
        image("b", colour="red"),
        {"name": "c", "model_mode": "text2video", "resolution": "1080"},
    )
    fields = {e.field for e in error.errors}
    assert {"samples[0].num_steps", "samples[1].colour"} <= fields and any("samples[2]" in f for f in fields)
    await core.submit("a")
    assert (await core.finish())["samples"][0]["state"] == "succeeded"


async def test_each_refusal_has_its_type(make_core: MakeCore) -> None:
    core = await make_core(max_samples=3, queue_limit=2)
    assert (await refused(core, ModelNotLoaded, image("a"), model="other")).status == 404
    await refused(core, ModeNotSupported, {"name": "a", "model_mode": "reasoner", "prompt": "x"})
    error = await refused(core, StorageAuthorizationError, image("a"), image("b", vision_path="/etc/passwd"))
    assert error.errors[0].field == "samples[1].vision_path"
    await refused(core, LimitExceeded, *[image(n) for n in "abcd"])
    await refused(core, LimitExceeded, *[image(n) for n in "abc"])
    with pytest.raises(InvalidRequestId):
        await core.coordinator.submit(BatchRequest(samples=[image("a")], request_id="../x"), tenant="t")


async def test_a_full_queue_answers_429_until_it_has_room(make_core: MakeCore) -> None:
    core = await make_core(queue_limit=4)
    core.engine.script = {n: ["slow"] for n in "abcdefgh"}
    await core.submit(*"abcd", id="r1")
    await until(lambda: len(core.engine.calls) == 1)
    await core.submit(*"efgh", id="r2")
    await until(lambda: len(core.engine.calls) == 2)
    await core.submit(*"abcd", id="r3")
    with pytest.raises(QueueFull) as caught:
        await core.submit("e", id="r4")
    assert caught.value.retry_after_s
    core.engine.gate.set()
    for n in (1, 2, 3):
        await core.finish(f"r{n}")
    await core.submit("e", id="r4")
    await core.finish("r4")


async def test_batches_accepted_at_the_same_time_never_overfill_the_queue(make_core: MakeCore) -> None:
    core = await make_core(queue_limit=6, engine=None)
    core.engine.script = {n: ["slow"] for n in "abc"}
    core.coordinator._dispatcher.hold()
    results = await asyncio.gather(
        *[core.submit(*"abc", id=f"r{n}") for n in range(8)], return_exceptions=True
    )  # fmt: skip
    assert sum(not isinstance(r, BaseException) for r in results) == 2
    assert all(isinstance(r, QueueFull) for r in results if isinstance(r, BaseException))
    assert core.coordinator.stats().depth == 6


async def test_the_same_body_joins_the_running_batch_and_finds_the_ended_one(core: Core) -> None:
    core.engine.script["a"] = ["slow"]
    first, second = await asyncio.gather(core.submit("a", "b"), core.submit("a", "b"))
    assert first.created_at == second.created_at
    waits = [asyncio.create_task(core.finish()) for _ in range(2)]
    core.engine.gate.set()
    responses = await asyncio.gather(*waits)
    assert responses[0] == responses[1]
    again = await core.submit("a", "b")
    assert again.state is BatchState.SUCCEEDED
    assert core.engine.calls == [["r1/a", "r1/b"]]


async def test_another_body_is_a_conflict(core: Core) -> None:
    await core.submit("a")
    with pytest.raises(Conflict) as caught:
        await core.submit("b")
    assert caught.value.stable_code == "request_id_conflict"
    await core.finish()
    with pytest.raises(Conflict):
        await core.submit(image("a", seed=1))


async def test_an_empty_id_is_drawn(core: Core) -> None:
    view = await core.submit("a", id="")
    assert len(view.request_id) == 32
    await core.finish(view.request_id)


async def test_the_same_body_reruns_only_what_may_be_retried_with_the_same_seeds(core: Core) -> None:
    core.engine.script = {
        "crash": [RuntimeError("x"), RuntimeError("x"), "ok"],
        "blocked": [lambda job: _blocked(job)],
    }
    await core.submit("good", "blocked", "crash")
    before = await core.finish()
    codes = [s["code"] or s["state"] for s in before["samples"]]
    assert codes == ["succeeded", "guardrail_blocked", "engine_failed"]
    core.engine.calls.clear()
    view = await core.submit("good", "blocked", "crash")
    assert [s.state for s in view.samples[:2]] == ["succeeded", "failed"] and not view.samples[2].state.ended
    after = await core.finish()
    assert core.engine.calls == [["r1/crash"]]
    assert [s["code"] or s["state"] for s in after["samples"]] == ["succeeded", "guardrail_blocked", "succeeded"]
    assert [s["seed"] for s in after["samples"]] == [s["seed"] for s in before["samples"]]
    assert after["artifacts"][0] == before["artifacts"][0]


def _blocked(job: Any) -> Any:
    from support.fake_engine import failed

    from cosmos3_serve.errors import SampleCode

    return failed(job, SampleCode.GUARDRAIL_BLOCKED, "the prompt was blocked")


async def test_a_cancelled_batch_can_be_asked_for_again(core: Core) -> None:
    core.engine.script = {f"s{n}": ["slow"] for n in range(10)}
    samples = [f"s{n}" for n in range(10)]
    await core.submit(*samples)
    await until(lambda: len(core.engine.calls) == 2)
    await core.coordinator.cancel("r1", tenant="t")
    core.engine.gate.set()
    await core.finish()
    assert (await core.codes())[8:] == ["cancelled"] * 2
    await core.submit(*samples)
    await core.finish()
    assert await core.codes() == ["succeeded"] * 10


async def test_a_rerun_starts_from_an_empty_directory(core: Core) -> None:
    core.engine.script["a"] = [RuntimeError("x"), RuntimeError("x"), "ok"]
    await core.submit("a")
    await core.finish()
    (core.root / "r1" / "a" / "half.bin").write_bytes(b"x")
    await core.submit("a")
    await core.finish()
    assert [p.name for p in (core.root / "r1" / "a").iterdir()] == ["vision.jpg"]


async def test_requests_that_arrive_together_share_the_limit_of_bytes(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is counted before its acceptance is written, not after."""
    monkeypatch.setattr(batches, "MAX_HELD_BYTES", 100_000)
    core.engine.script["s"] = ["slow"]
    large = [image("s", extra={"k": "x" * 40_000}) for _ in range(10)]
    arrivals = [core.submit(body, id=f"r{n}", detached=True) for n, body in enumerate(large)]
    outcomes = await asyncio.gather(*arrivals, return_exceptions=True)
    accepted = [n for n, outcome in enumerate(outcomes) if not isinstance(outcome, QueueFull)]
    assert len(accepted) == 2
    core.engine.gate.set()
    for n in accepted:
        await core.finish(f"r{n}")
    await core.submit(image("s", extra={"k": "x" * 40_000}), id="r99")  # nothing stays counted
    await core.finish("r99")


async def test_a_full_disk_refuses_the_batch_and_the_next_try_works(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    with failing_disk(monkeypatch):
        error = await refused(core, NotReady, image("a"))
    assert error.stable_code == "disk_full"
    await core.submit("a")
    await core.finish()


async def test_a_disk_that_fills_while_samples_run_loses_no_result(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    core.engine.script["a"] = ["slow"]
    await core.submit("a")
    await until(lambda: len(core.engine.calls) == 1)

    with failing_disk(monkeypatch):
        core.engine.gate.set()
        await until(lambda: core.coordinator.stats().disk_trouble is not None)
        assert (await core.coordinator.view("r1", tenant="t")).state is BatchState.RUNNING
    await core.clock.advance(6)
    await core.finish()
    assert await core.codes() == ["succeeded"] and core.coordinator.stats().disk_trouble is None


async def test_an_output_root_that_takes_no_folder_holds_the_queue_and_fails_nobody(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, full = Path.mkdir, True

    def mkdir(path: Path, *args: Any, **options: Any) -> None:
        if full and path.parent == core.root / "r1":
            raise OSError(errno.ENOSPC, "full")
        real(path, *args, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    await core.submit(*[f"s{n}" for n in range(20)])
    await until(lambda: core.coordinator.stats().disk_trouble is not None)
    await core.clock.advance(60)
    assert core.engine.calls == [] and set(await core.codes()) == {"queued", "running"}
    full = False
    while core.coordinator.stats().disk_trouble is not None:
        await core.clock.advance(6)
        await asyncio.sleep(0.005)
    await core.finish()
    assert await core.codes() == ["succeeded"] * 20


async def test_a_sample_that_waits_costs_little_memory(make_core: MakeCore) -> None:
    """What it resolves to is not kept: with it, one held five times as much."""
    core = await make_core(max_samples=1000, queue_limit=10_000)
    core.engine.script = {f"s{n}": ["hang"] for n in range(500)}
    names = [image(f"s{n}") for n in range(500)]
    await core.submit(*names, id="first", detached=True)
    gc.collect()
    tracemalloc.start(1)
    try:
        for batch in range(4):
            await core.submit(*names, id=f"r{batch}", detached=True)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 2000 * 2000
    finally:
        tracemalloc.stop()


async def test_before_an_engine_answered_nothing_is_accepted(make_core: MakeCore, tmp_path: Any) -> None:
    engine = FakeEngine(tmp_path / "out")
    engine.down = 3
    core = await make_core(engine=engine, wait=False)
    error = await refused(core, NotReady, image("a"))
    assert error.retry_after_s
    await core.clock.advance(10)
    await core.coordinator.ready()
    await core.submit("a")
    await core.finish()


SAMPLES = [image(f"s{n}", num_steps=1 if n < 4 else 2) for n in range(14)]


async def crashed(make_core: MakeCore, *, detached: bool) -> None:
    """A service that dies with four samples done, eight running and two waiting."""
    core = await make_core()
    core.engine.script = {f"s{n}": ["slow"] for n in range(4, 14)}
    await core.submit(*SAMPLES, detached=detached)
    await until(lambda: len(core.engine.calls) == 3)
    await until(lambda: str(core.counter.seen).count("succeeded") == 4)
    await core.coordinator.close()


async def test_after_a_restart_a_blocking_batch_is_interrupted_and_can_be_resumed(make_core: MakeCore) -> None:
    await crashed(make_core, detached=False)
    core = await make_core()
    response = await core.finish()
    assert await core.codes() == ["succeeded"] * 4 + ["interrupted"] * 10
    assert core.engine.calls == []
    assert response["outputs"][5]["status"] == "error" and response["outputs"][5]["args"]["name"] == "s5"
    await core.submit(*SAMPLES)
    await core.finish()
    assert await core.codes() == ["succeeded"] * 14
    assert sum(len(call) for call in core.engine.calls) == 10


async def test_after_a_restart_an_asynchronous_batch_goes_on_with_what_waited(make_core: MakeCore) -> None:
    await crashed(make_core, detached=True)
    core = await make_core()
    await core.finish()
    assert await core.codes() == ["succeeded"] * 4 + ["interrupted"] * 8 + ["succeeded"] * 2
    assert core.engine.calls == [["r1/s12", "r1/s13"]]


async def test_another_engine_does_not_go_on_with_a_batch(make_core: MakeCore, tmp_path: Any) -> None:
    await crashed(make_core, detached=True)
    other = FakeEngine(tmp_path / "out", info=INFO.model_copy(update={"checkpoint_digest": "e" * 64}))
    core = await make_core(engine=other)
    response = await core.finish()
    assert (await core.codes())[12:] == ["interrupted"] * 2
    assert response["checkpoint"]["digest"] == "d" * 64
    assert (await core.submit(*SAMPLES, detached=True)).state is BatchState.FAILED
    assert other.calls == []


async def test_a_damaged_batch_is_reported_and_its_id_refused(make_core: MakeCore) -> None:
    core = await make_core()
    await core.submit("a")
    await core.finish()
    await core.coordinator.close()
    database = sqlite3.connect(core.root / ".cosmos3" / "ledger.sqlite")
    database.execute("UPDATE batch SET ended_at = 'melted'")
    database.commit()
    database.close()
    core = await make_core()
    with pytest.raises(Conflict):
        await core.submit("a")
    await core.submit("a", id="r2")
    await core.finish("r2")


async def test_draining_finishes_what_runs_and_interrupts_what_waits(make_core: MakeCore) -> None:
    core = await make_core()
    core.engine.script = {f"s{n}": ["slow"] for n in range(10)}
    await core.submit(*[f"s{n}" for n in range(10)], id="blocking")
    await until(lambda: len(core.engine.calls) == 2)
    await core.submit("s0", id="later", detached=True)
    waiting = asyncio.create_task(core.coordinator.wait_ended("later", tenant="t"))
    drain = asyncio.create_task(core.coordinator.drain(60))
    await until(lambda: core.coordinator.stats().depth == 0)
    with pytest.raises(Draining):
        await core.submit("x", id="r9")
    core.engine.gate.set()
    await drain
    await core.finish("blocking")
    assert await core.codes("blocking") == ["succeeded"] * 8 + ["interrupted"] * 2
    with pytest.raises(Draining):
        await waiting
    await core.coordinator.close()
    core = await make_core()
    await core.finish("later")
    assert await core.codes("later") == ["succeeded"]


async def test_a_drain_does_not_wait_for_ever(make_core: MakeCore) -> None:
    core = await make_core()
    core.engine.script["a"] = ["hang"]
    await core.submit("a")
    await until(lambda: len(core.engine.calls) == 1)
    drain = asyncio.create_task(core.coordinator.drain(60))
    await until(lambda: len(core.clock._sleepers) >= 3)
    await core.clock.advance(61)
    await drain
    await core.finish()
    assert await core.codes() == ["interrupted"]


async def test_nonsense_in_every_field_leaves_a_service_that_works(core: Core) -> None:
    """Each is refused with a type, and then a good batch runs."""
    nonsense: list[Any] = [None, -1, 1.5, "x" * 300, "\ud800", [], {}, [[]], True, "s3://", "../..", float("nan")]
    keys = ["name", "num_steps", "num_frames", "prompt", "vision_path", "edge", "seed", "resolution", "zzz", "extra"]
    refusals = 0
    for key in keys:
        for value in nonsense:
            try:
                body = {"samples": [{**image("a"), key: value}], "request_id": f"n{refusals}"}
                request = parse_batch(body, max_samples=10, profile=PROFILE)
                await core.coordinator.submit(request, tenant="t")
            except Cosmos3Error as error:
                assert error.stable_code and error.detail
                refusals += 1
    assert refusals > 60
    await core.submit("a", id="good")
    assert (await core.finish("good"))["samples"][0]["state"] == "succeeded"
