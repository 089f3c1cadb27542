"""Coordinator: a batch from submission to response, and what its neighbours, its caller and the engine may do to it."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from support.core import REVISION, Core, MakeCore, image
from support.fake_engine import COMPUTE, done, failed, write
from support.fakes import settle, until

from cosmos3_serve.contract.batch import BatchRequest
from cosmos3_serve.contract.binding import bind_response
from cosmos3_serve.contract.records import SampleRecord
from cosmos3_serve.contract.views import BatchState
from cosmos3_serve.errors import (
    Conflict,
    EngineFailed,
    NotFound,
    SampleCode,
)
from cosmos3_serve.generator.ledger.files import BatchFiles
from cosmos3_serve.generator.queue import delivery as delivery_module


def names(count: int) -> list[str]:
    return [f"s{i}" for i in range(count)]


async def test_four_samples_share_one_wave_and_the_response_binds(core: Core) -> None:
    view = await core.submit("a", "b", "c", "d")
    assert view.state is BatchState.QUEUED and [s.name for s in view.samples] == ["a", "b", "c", "d"]
    response = await core.finish()
    assert core.engine.calls == [["r1/a", "r1/b", "r1/c", "r1/d"]]
    request = BatchRequest(samples=[image(n) for n in "abcd"], request_id="r1")
    bound = bind_response(request, response, expected_revision="diffusers-0.0.0")
    assert bound.server_source_revision == REVISION
    assert bound.backend == "diffusers-ray-serve" and bound.weights == "random"
    assert [a.path for a in bound.artifacts] == [f"r1/{n}/vision.jpg" for n in "abcd"]
    second = response["samples"][1]
    assert second["wave"]["inference_batch"] == 4 and second["wave"]["neighbours"] == ["a", "c", "d"]
    assert SampleRecord.model_validate(second).compute == COMPUTE
    assert second["seed"] == response["outputs"][1]["args"]["seed"]
    assert set(second["timings"]) == {"queue", "inference", "encode", "hash"}


async def test_seeds_are_drawn_recorded_and_used(core: Core) -> None:
    await core.submit(image("given", seed=7), image("drawn"))
    await core.finish()
    view = await core.coordinator.view("r1", tenant="t")
    seeds = {s.name: s.seed for s in view.samples}
    assert seeds["given"] == 7
    assert {job.name: job.args["seed"] for job in core.engine.jobs.values()} == seeds


async def test_a_burst_of_32_with_limit_4_takes_few_waves(make_core: MakeCore) -> None:
    core = await make_core(batch_wait_timeout_s=0.05)
    await asyncio.gather(*[core.submit("x", id=f"r{n}") for n in range(32)])
    await asyncio.gather(*[core.finish(f"r{n}") for n in range(32)])
    assert sum(len(call) for call in core.engine.calls) == 32
    assert core.coordinator.stats().waves_started <= 9
    assert max(len(call) for call in core.engine.calls) == 4


async def test_a_lone_sample_waits_a_moment_for_company_and_no_longer(make_core: MakeCore) -> None:
    core = await make_core(batch_wait_timeout_s=0.05)
    await core.submit("a", id="r1")
    await core.submit("b", id="r2")
    await settle()
    assert core.engine.calls == []
    await core.clock.advance(0.06)
    await asyncio.gather(core.finish("r1"), core.finish("r2"))
    assert core.engine.calls == [["r1/a", "r2/b"]]


async def test_while_the_engine_denoises_a_wave_waits_to_be_full(core: Core) -> None:
    core.engine.script = {"a": ["slow"]}
    await core.submit("a", id="r1")
    await until(lambda: len(core.engine.calls) == 1)
    await core.submit("b", "c", id="r2")
    await settle()
    assert core.coordinator.stats().depth == 2
    await core.submit("d", "e", id="r3")
    await core.finish("r2")
    assert core.engine.calls == [["r1/a"], ["r2/b", "r2/c", "r3/d", "r3/e"]]
    await core.submit("f", id="r4")
    await settle()
    core.engine.steps = {"r1/a": (4, 4)}  # its last step is taken: what it still does overlaps with the next wave
    await core.clock.advance(1)
    await core.finish("r4")
    core.engine.gate.set()
    await core.finish("r1")


async def test_sixteen_batches_at_once_each_get_their_own_artifacts(core: Core) -> None:
    await asyncio.gather(*[core.submit("a", "b", "c", id=f"r{n}") for n in range(16)])
    responses = await asyncio.gather(*[core.finish(f"r{n}") for n in range(16)])
    for n, response in enumerate(responses):
        assert [s["state"] for s in response["samples"]] == ["succeeded"] * 3
        for record, artifact in zip(response["samples"], response["artifacts"], strict=True):
            path = core.root / artifact["path"]
            assert path.read_text() == f"r{n}/{record['name']}:{record['seed']}"


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda job: failed(job, SampleCode.GUARDRAIL_BLOCKED, "the prompt was blocked"), "guardrail_blocked"),
        (RuntimeError("CUDA error: quoting a neighbour's prompt"), "engine_failed"),
        (EngineFailed("the model raised in step 3"), "engine_failed"),
        ("wrong", "output_invalid"),
        ("oom", "out_of_memory"),
    ],
)
async def test_one_bad_of_four_costs_the_others_nothing(core: Core, act: Any, code: str) -> None:
    core.engine.script["bad"] = [act]
    await core.submit("a", "bad", "c", "d")
    response = await core.finish()
    assert [s["code"] or s["state"] for s in response["samples"]] == ["succeeded", code, "succeeded", "succeeded"]
    bad = response["outputs"][1]
    assert bad["status"] == "error" and bad["stack_trace"] is None and bad["outputs"] == []
    assert bad["args"]["name"] == "bad" and "quoting" not in json.dumps(response)
    assert len(response["artifacts"]) == 3


async def test_an_engine_that_raises_once_is_asked_again_sample_by_sample(core: Core) -> None:
    core.engine.script["a"] = [ConnectionError("the replica died"), "ok"]
    await core.submit("a", "b")
    await core.finish()
    assert await core.codes() == ["succeeded", "succeeded"]
    assert core.engine.calls == [["r1/a", "r1/b"], ["r1/a"], ["r1/b"]]


async def test_out_of_memory_in_company_is_tried_alone(core: Core) -> None:
    core.engine.script["a"] = ["oom", "ok"]
    await core.submit("a", "b")
    await core.finish()
    assert await core.codes() == ["succeeded", "succeeded"]
    assert core.engine.calls == [["r1/a", "r1/b"], ["r1/a"]]


@pytest.mark.parametrize(
    "behaviour",
    [
        lambda job: (write(job, data=b""), done(job))[1],
        lambda job: done(job),
        lambda job: (write(job), done(job, args={"seed": 12345678901}))[1],
        lambda job: (write(job), done(job, args={"name": "other"}))[1],
        lambda job: (write(job), done(job, files=["r1/other/vision.jpg"]))[1],
        lambda job: (write(job), done(job, files=[f"{job.key}/vision.mp4"]))[1],
        lambda job: (write(job), done(job, files=[f"{job.key}/vision.jpg"] * 2))[1],
        lambda job: (write(job), done(job, outputs=[]))[1],
        lambda job: (write(job), done(job, outputs=[{"content": {"action": [float("nan")]}, "files": []}]))[1],
        lambda job: (write(job), done(job, surprise=1))[1],
        lambda job: (write(job), done(job, status="error"))[1],
        lambda job: (linked(Path(job.output_dir)), done(job))[1],
    ],
)
async def test_what_is_no_result_of_the_sample_never_becomes_an_artifact(core: Core, behaviour: Any) -> None:
    core.engine.script["bad"] = [behaviour]
    await core.submit("bad", "good")
    response = await core.finish()
    assert await core.codes() == ["output_invalid", "succeeded"]
    assert [a["sample"] for a in response["artifacts"]] == ["good"]
    with pytest.raises(NotFound):
        await core.coordinator.artifact("r1/bad/vision.jpg", tenant="t")


async def test_nonsense_in_an_engines_records_spoils_neither_the_sample_nor_the_response(core: Core) -> None:
    def odd(job: Any) -> Any:
        write(job)
        result = done(job)
        wave = result.wave.model_copy(update={"coalesced": -1, "inference_id": "\ud800"})
        big = {"compute": COMPUTE.model_copy(update={"libraries": {str(n): "1" for n in range(1000)}})}
        phases = {"inference": float("nan"), "encode": -1.0, "\ud800": 1.0, "ok": 2.0}
        return result.model_copy(update={"wave": wave, "phases": phases, "guardrails": {"checks": float("inf")}, **big})

    core.engine.script["odd"] = [odd]
    core.engine.script["bad"] = [lambda job: failed(job, SampleCode.ENGINE_FAILED, "lone \ud800 surrogate")]
    await core.submit("odd", "bad")
    response = await core.finish()
    assert await core.codes() == ["succeeded", "engine_failed"]
    record = response["samples"][0]
    assert record["wave"] is record["compute"] is None and record["guardrails"] == {}
    assert set(record["timings"]) == {"queue", "ok", "hash"}


def linked(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "vision.jpg").symlink_to("/etc/hostname")


async def test_no_path_of_the_server_leaves(make_core: MakeCore) -> None:
    core = await make_core(allowed_s3_roots="s3://b")
    uri = "s3://b/in/start.png"
    await core.bucket.put_bytes("in/start.png", b"pixels")
    video = {"name": "v", "prompt": "x", "vision_path": uri, "num_frames": 5}
    core.engine.script["v"] = [
        lambda job: (write(job, "vision.mp4"), done(job, files=[f"{job.key}/vision.mp4"]))[1]
    ]  # fmt: skip
    core.engine.script["bad"] = [lambda job: failed(job, SampleCode.ENGINE_FAILED, f"cannot open {job.output_dir}/x")]
    await core.submit(video, "bad")
    response = await core.finish()
    assert core.engine.jobs["r1/v"].args["vision_path"].startswith(str(core.root))
    assert response["outputs"][0]["args"]["vision_path"] == uri
    assert response["outputs"][0]["args"]["output_dir"] == "r1/v"
    assert response["samples"][1]["message"] == "cannot open <path>"
    assert str(core.root) not in json.dumps(response)
    first, _ = await core.coordinator._ledger.details("r1", results=True)
    assert first.inputs[0]["uri"] == uri and first.inputs[0]["bytes"] == 6
    assert list((core.root / ".cosmos3" / "staging").iterdir()) == []


async def test_a_missing_input_fails_its_sample_and_no_other(make_core: MakeCore) -> None:
    core = await make_core(allowed_s3_roots="s3://b")
    video = {"name": "v", "prompt": "x", "vision_path": "s3://b/none.png", "num_frames": 5}
    await core.submit(video, "a")
    response = await core.finish()
    assert await core.codes() == ["staging_failed", "succeeded"]
    assert response["outputs"][0]["args"]["vision_path"] == "s3://b/none.png"
    assert core.engine.calls == [["r1/a"]]


async def test_a_prompt_from_a_text_object_reaches_the_engine(make_core: MakeCore) -> None:
    core = await make_core(allowed_s3_roots="s3://b")
    await core.bucket.put_bytes("p.txt", b"  a red kite \n")
    await core.submit({"name": "a", "num_frames": 1, "prompt_path": "s3://b/p.txt"})
    response = await core.finish()
    assert core.engine.jobs["r1/a"].args["prompt"] == "a red kite"
    assert response["outputs"][0]["args"]["prompt"] == "a red kite"


async def test_cancelling_forty_of_fifty_leaves_a_service_that_works(core: Core) -> None:
    core.engine.script = {"x": ["slow"]}
    for n in range(50):
        await core.submit("x", id=f"r{n}")
    await until(lambda: len(core.engine.calls) == 2)
    for n in range(10, 50):
        view = await core.coordinator.cancel(f"r{n}", tenant="t")
        assert view.state is BatchState.CANCELLED
    core.engine.gate.set()
    for n in range(10):
        await core.finish(f"r{n}")
    skipped = await core.finish("r30")
    assert skipped["outputs"][0]["status"] == "skip" and skipped["samples"][0]["code"] == "cancelled"
    assert sum(len(call) for call in core.engine.calls) == 10
    await core.submit("normal", id="after")
    assert (await core.finish("after"))["samples"][0]["state"] == "succeeded"
    assert core.coordinator.stats().depth == 0


@pytest.mark.parametrize("obeys", [True, False])
async def test_a_running_sample_is_told_to_stop_and_is_finishing_until_it_does(core: Core, obeys: bool) -> None:
    core.engine.obeys_cancel = obeys
    core.engine.script["a"] = ["slow"]
    await core.submit("a", "b", "c", "d", "e")
    await until(lambda: len(core.engine.calls) == 1)
    view = await core.coordinator.cancel("r1", tenant="t")
    assert set(core.engine.cancelled) >= {"r1/a", "r1/b"}
    assert view.samples[0].state == "running" and view.samples[0].finishing
    core.engine.gate.set()
    await core.finish()
    assert (await core.codes())[0] == ("cancelled" if obeys else "succeeded")


async def test_a_broken_call_of_a_cancelled_batch_is_not_repeated(core: Core) -> None:
    core.engine.script["a"] = ["slow"]
    core.engine.script["b"] = [RuntimeError("broken")]
    await core.submit("a", "b")
    await until(lambda: len(core.engine.calls) == 1)
    await core.coordinator.cancel("r1", tenant="t")
    core.engine.gate.set()
    await core.finish()
    assert len(core.engine.calls) == 1


async def test_a_lost_blocking_caller_cancels_what_waits_and_keeps_what_runs(core: Core) -> None:
    core.engine.script = {"s0": ["slow"], "s4": ["slow"]}
    await core.submit(*names(10))
    await until(lambda: len(core.engine.calls) == 2)
    await core.coordinator.abandon("r1", tenant="t")
    core.engine.gate.set()
    await core.finish()
    codes = await core.codes()
    assert codes == ["succeeded"] * 8 + ["cancelled"] * 2
    assert core.engine.cancelled == []


async def test_an_asynchronous_batch_outlives_its_callers(core: Core) -> None:
    core.engine.script["s0"] = ["slow"]
    await core.submit(*names(10), detached=True)
    await core.coordinator.abandon("r1", tenant="t")
    core.engine.gate.set()
    await core.finish()
    assert await core.codes() == ["succeeded"] * 10


async def test_a_caller_who_leaves_during_the_submission_leaves_no_orphan(core: Core) -> None:
    core.engine.script["s0"] = ["slow"]
    task = asyncio.create_task(core.submit(*names(10)))
    await until(lambda: bool(core.coordinator._batches._turns))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    core.engine.gate.set()
    await core.finish()
    assert (await core.codes())[-1] == "cancelled"


async def test_the_response_is_not_there_before_the_end_and_the_same_bytes_after(core: Core) -> None:
    core.engine.script["a"] = ["slow"]
    await core.submit("a")
    with pytest.raises(Conflict) as caught:
        await core.coordinator.response("r1", tenant="t")
    assert caught.value.stable_code == "batch_not_ended"
    core.engine.gate.set()
    await core.finish()
    first = await core.response()
    assert first == await core.response()
    assert first == (core.root / ".cosmos3" / "ledger" / "r1" / "response.json").read_bytes()


async def test_what_a_view_calls_ended_has_its_response(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples have ended, the response is being written: until the end is on disk the batch runs."""
    gate, write = threading.Event(), BatchFiles.write_response
    monkeypatch.setattr(BatchFiles, "write_response", lambda *args: gate.wait(10) and write(*args))
    await core.submit("a")
    while (view := await core.coordinator.view("r1", tenant="t")).samples[0].state.value != "succeeded":  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert view.state is BatchState.RUNNING and "response" not in view.links
    with pytest.raises(Conflict):
        await core.coordinator.response("r1", tenant="t")
    cancelling = asyncio.create_task(core.coordinator.cancel("r1", tenant="t"))
    await settle()
    gate.set()
    await cancelling
    await core.finish()
    assert (await core.coordinator.view("r1", tenant="t")).state is BatchState.SUCCEEDED
    assert b'"outputs"' in await core.response()
    assert [event.type async for event in core.coordinator.events("r1", tenant="t")][-1] == "end"


async def test_a_task_that_breaks_is_a_failure_of_the_coordinator(
    make_core: MakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Serve's health check asks for it: a service without its dispatcher must not look healthy."""

    async def broken(self: Any) -> None:
        raise TypeError("as told")

    monkeypatch.setattr("cosmos3_serve.generator.queue.dispatcher.Dispatcher.run", broken)
    core = await make_core()
    await until(lambda: core.coordinator.failure is not None)
    assert core.coordinator.failure is not None and "TypeError" in core.coordinator.failure.detail


async def test_another_tenants_batch_is_not_found(core: Core) -> None:
    await core.submit("a", tenant="owner")
    await core.finish(tenant="owner")
    coordinator = core.coordinator
    for ask in (
        lambda: coordinator.view("r1", tenant="thief"),
        lambda: coordinator.response("r1", tenant="thief"),
        lambda: coordinator.cancel("r1", tenant="thief"),
        lambda: coordinator.wait_ended("r1", tenant="thief"),
        lambda: coordinator.artifact("r1/a/vision.jpg", tenant="thief"),
    ):
        with pytest.raises(NotFound):
            await ask()
    with pytest.raises(NotFound):
        coordinator.events("r1", tenant="thief")
    assert await coordinator.list(tenant="thief") == []
    with pytest.raises(Conflict) as caught:
        await core.submit("a", tenant="thief")
    assert caught.value.stable_code == "request_id_taken"


@pytest.mark.parametrize(
    "path",
    [
        "r1/a/sample_args.json",
        "r1/a",
        "r1/a/",
        "r1//vision.jpg",
        "r1/a/../a/vision.jpg",
        "/r1/a/vision.jpg",
        "r1/b/vision.jpg",
        "r1/a/vision.jpg\n",
        "r1/a/visi\u00f6n.jpg",
        ".cosmos3/ledger/r1",
        ".cosmos3/ledger/r1/request.json",
        ".cosmos3/ledger.sqlite",
        "",
        "..",
    ],
)
async def test_only_declared_files_are_artifacts(core: Core, path: str) -> None:
    await core.submit("a")
    await core.finish()
    (core.root / "r1" / "a" / "sample_args.json").write_text("{}")
    found = await core.coordinator.artifact("r1/a/vision.jpg", tenant="t")
    assert found.path.stat().st_size == found.bytes
    with pytest.raises(NotFound):
        await core.coordinator.artifact(path, tenant="t")


async def test_an_artifact_that_became_a_link_is_gone(core: Core) -> None:
    await core.submit("a")
    await core.finish()
    path = core.root / "r1" / "a" / "vision.jpg"
    path.unlink()
    path.symlink_to("/etc/hostname")
    with pytest.raises(NotFound):
        await core.coordinator.artifact("r1/a/vision.jpg", tenant="t")


async def test_artifacts_of_finished_samples_are_there_while_others_run(core: Core) -> None:
    core.engine.script["slow"] = ["slow"]
    await core.submit("a", image("slow", num_steps=9))
    await until(lambda: "succeeded" in str(core.counter.seen))
    assert (await core.coordinator.artifact("r1/a/vision.jpg", tenant="t")).bytes > 0
    assert (await core.coordinator.view("r1", tenant="t")).state is BatchState.RUNNING
    core.engine.gate.set()
    await core.finish()


async def test_listing_is_newest_first_and_pages(core: Core) -> None:
    for n in range(5):
        await core.submit("a", id=f"r{n}")
        await core.finish(f"r{n}")
        await core.clock.advance(1)
    page = await core.coordinator.list(tenant="t", limit=2)
    assert [view.request_id for view in page] == ["r4", "r3"]
    rest = await core.coordinator.list(tenant="t", limit=10, after="r3")
    assert [view.request_id for view in rest] == ["r2", "r1", "r0"]
    assert rest[0].state is BatchState.SUCCEEDED


async def test_slow_hashing_blocks_neither_the_loop_nor_other_samples_acceptance(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both hashing threads are held at a barrier; the loop, submissions and the engine must go on meanwhile."""
    release, inside = threading.Event(), threading.Semaphore(0)
    real = delivery_module.verify

    def slow(*args: Any) -> Any:
        inside.release()
        assert release.wait(30)
        return real(*args)

    monkeypatch.setattr(delivery_module, "verify", slow)
    beats = 0

    async def heart() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0)

    heartbeat = asyncio.create_task(heart())
    await core.submit("a", "b")
    assert await asyncio.to_thread(inside.acquire, timeout=30)
    assert await asyncio.to_thread(inside.acquire, timeout=30)
    before = beats
    await core.submit("c", id="r2")
    await until(lambda: ["r2/c"] in core.engine.calls)
    assert (await core.coordinator.view("r1", tenant="t")).state is BatchState.RUNNING
    assert beats > before
    release.set()
    await core.finish("r1")
    await core.finish("r2")
    heartbeat.cancel()


async def test_slow_storage_holds_up_only_the_sample_that_waits_for_it(make_core: MakeCore) -> None:
    core = await make_core(allowed_s3_roots="s3://b")
    await core.bucket.put_bytes("start.png", b"pixels")
    gate, real = asyncio.Event(), core.bucket.get_stream

    async def slow(key: str, **options: Any) -> Any:
        await gate.wait()
        async for chunk in real(key, **options):
            yield chunk

    core.bucket.get_stream = slow  # type: ignore[method-assign]
    core.engine.script["v"] = [
        lambda job: (write(job, "vision.mp4"), done(job, files=[f"{job.key}/vision.mp4"]))[1]
    ]  # fmt: skip
    await core.submit({"name": "v", "prompt": "x", "vision_path": "s3://b/start.png", "num_frames": 5}, "a")
    await until(lambda: core.engine.calls == [["r1/a"]])
    await until(lambda: "staging" in str(core.counter.seen))
    assert core.coordinator.stats().depth == 1
    gate.set()
    await core.finish()
    assert await core.codes() == ["succeeded", "succeeded"]


async def test_queue_figures(core: Core) -> None:
    core.engine.script = {name: ["slow"] for name in names(12)}
    await core.submit(*names(12))
    await until(lambda: len(core.engine.calls) == 2)
    await core.clock.advance(7)
    stats = core.coordinator.stats()
    assert (stats.depth, stats.running, stats.waves_started) == (4, 8, 2)
    assert stats.oldest_age_s == stats.last_wave_age_s == 7 and stats.ready and not stats.stalled
    core.engine.gate.set()
    await core.finish()
    assert core.coordinator.stats().depth == core.coordinator.stats().running == 0


async def test_memory_is_let_go_when_batches_end(core: Core) -> None:
    for n in range(20):
        await core.submit("a", "b", id=f"r{n}")
        await core.finish(f"r{n}")
    await settle()
    coordinator = core.coordinator
    dispatcher = coordinator._dispatcher
    assert (
        not any((dispatcher.works, dispatcher.running, dispatcher._tasks, coordinator._batches._turns))
        and dispatcher._prefetch.empty
    )
    assert not coordinator._completion._expected and not coordinator._ledger._live
    assert not coordinator._watchdog.flights and not coordinator._watchdog.steps and not coordinator._hub.watched
    assert not coordinator._scheduler._lines
