"""Dispatcher under a wave cap (the framework engine): one wave at a time, under the cap, learned from what happened."""

from __future__ import annotations

from typing import Any

import pytest
from support.core import Core, MakeCore, image
from support.fake_engine import INFO, FakeEngine
from support.fakes import settle, until

from cosmos3_serve.contract.profile import FRAMEWORK_PROFILE
from cosmos3_serve.contract.wire import FRAMEWORK_REVISION
from cosmos3_serve.errors import DeadlineUnreachable, SampleCode, SampleError

FRAMEWORK = INFO.model_copy(update={"engine": "framework", "revision": FRAMEWORK_REVISION})


class Timed(FakeEngine):
    """Takes the given seconds of the core's clock for each batch, by the sum of its samples."""

    seconds: dict[str, float]
    core: Core

    async def _run(self, batch: Any) -> None:
        self.core.clock.time += sum(self.seconds.get(job.name[0], 1.0) for job, _ in batch)
        await super()._run(batch)


async def framework_core(make_core: MakeCore, tmp_path: Any, **seconds: float) -> Core:
    engine = Timed(tmp_path / "out", info=FRAMEWORK)
    engine.seconds = seconds
    core: Core = await make_core(engine=engine, profile=FRAMEWORK_PROFILE)
    engine.core = core
    return core


async def test_one_wave_at_a_time_and_a_new_shape_runs_alone_first(make_core: MakeCore, tmp_path: Any) -> None:
    core = await framework_core(make_core, tmp_path, a=2.0)
    await core.submit(*[f"a{n}" for n in range(9)])
    response = await core.finish()
    assert [len(call) for call in core.engine.calls] == [1, 4, 4]
    assert response["framework_revision"] == FRAMEWORK_REVISION


async def test_waves_are_kept_under_the_cap(make_core: MakeCore, tmp_path: Any) -> None:
    core = await framework_core(make_core, tmp_path, a=120.0)
    await core.submit(*[f"a{n}" for n in range(5)])
    await core.finish()
    assert [len(call) for call in core.engine.calls] == [1, 2, 2]


async def test_what_cannot_finish_alone_fails_what_waits_and_is_refused_from_then_on(
    make_core: MakeCore, tmp_path: Any
) -> None:
    core = await framework_core(make_core, tmp_path, h=400.0)
    core.engine.script["h0"] = [TimeoutError()]
    await core.submit("h0", "h1", "h2", image("other", num_steps=3))
    await core.finish()
    assert await core.codes() == ["deadline_exceeded"] * 3 + ["succeeded"]
    assert core.engine.calls == [["r1/h0"], ["r1/other"]]
    with pytest.raises(DeadlineUnreachable) as caught:
        await core.submit("x", "y", id="r2")
    assert [e.field for e in caught.value.errors] == ["samples[0]", "samples[1]"]
    await core.submit(image("x", num_steps=3), id="r2")
    await core.finish("r2")


async def test_a_shared_wave_that_ran_into_the_cap_is_rerun_alone_and_waves_shrink(
    make_core: MakeCore, tmp_path: Any
) -> None:
    core = await framework_core(make_core, tmp_path, a=50.0, b=110.0)
    await core.submit("a0")
    await core.finish()
    core.engine.script["b1"] = [TimeoutError(), "ok"]
    await core.submit(*[f"b{n}" for n in range(1, 6)], id="r2")
    await core.finish("r2")
    assert await core.codes("r2") == ["succeeded"] * 5
    # Four together took 440 s; each ran again alone; the shape is now known to be slow, so the fifth runs by itself.
    assert [len(call) for call in core.engine.calls] == [1, 4, 1, 1, 1, 1, 1]
    assert max(core.coordinator._scheduler.durations._largest.values()) >= 110.0


async def test_a_typed_failure_is_final(core: Core) -> None:
    async def generate(job: Any) -> Any:
        raise SampleError(SampleCode.GUARDRAIL_BLOCKED, f"blocked, see {job.output_dir}/x")

    core.engine.generate = generate  # type: ignore[method-assign]
    await core.submit("a", "b")
    response = await core.finish()
    assert await core.codes() == ["guardrail_blocked"] * 2
    assert response["samples"][0]["message"] == "blocked, see <path>"


async def test_a_fault_of_our_own_in_a_wave_ends_its_samples_and_nothing_else(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cosmos3_serve.generator.queue import dispatcher as pump_module

    def broken(*_: Any) -> Any:
        raise KeyError("ours")

    with monkeypatch.context() as patch:
        patch.setattr(pump_module, "job_of", broken)
        await core.submit("a", "b")
        await core.finish()
    assert await core.codes() == ["engine_failed"] * 2
    await core.submit("c", id="r2")
    await core.finish("r2")
    assert await core.codes("r2") == ["succeeded"]


async def test_staged_inputs_are_bounded_however_long_the_queue(make_core: MakeCore) -> None:
    core = await make_core(allowed_s3_roots="s3://b")
    core.engine.script = {f"v{n}": ["slow"] for n in range(60)}
    samples = []
    for n in range(60):
        await core.bucket.put_bytes(f"{n}.png", b"x" * 1000)
        samples.append({"name": f"v{n}", "prompt": "x", "vision_path": f"s3://b/{n}.png", "num_frames": 5})
    await core.submit(*samples)
    await until(lambda: len(core.engine.calls) == 2)
    await settle()
    staged = [p for p in (core.root / ".cosmos3" / "staging" / "r1").iterdir() if p.suffix == ".png"]
    assert len(staged) <= 8 + 8
    await core.coordinator.cancel("r1", tenant="t")
    core.engine.gate.set()
    await core.finish()
    assert (await core.codes())[16:] == ["cancelled"] * 44
    assert list((core.root / ".cosmos3" / "staging").iterdir()) == []
    assert core.coordinator._dispatcher._prefetch.empty
