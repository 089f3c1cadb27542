"""Watchdog: progress is told, a wedged engine is replaced and its samples are given up, and work goes on after."""

from __future__ import annotations

from typing import Any

from support.core import Core, MakeCore
from support.fakes import settle, until

from cosmos3_serve.contract.views import BatchState


async def test_steps_are_shown_while_a_sample_runs(core: Core) -> None:
    core.engine.script["a"] = ["slow"]
    await core.submit("a")
    await until(lambda: len(core.engine.calls) == 1)
    core.engine.steps = {"r1/a": (2, 4), "r9/foreign": (1, 2)}
    await core.clock.advance(1)
    view = await core.coordinator.view("r1", tenant="t")
    assert (view.samples[0].step, view.samples[0].total_steps) == (2, 4)
    core.engine.gate.set()
    await core.finish()
    assert (await core.coordinator.view("r1", tenant="t")).samples[0].step is None
    assert core.coordinator._watchdog.steps == {}


async def test_a_wedged_engine_is_replaced_and_the_next_batch_runs(make_core: MakeCore) -> None:
    core = await make_core(stall_timeout_s=100)
    core.engine.script = {"a": ["hang"]}
    await core.submit("a", "b")
    await until(lambda: len(core.engine.calls) == 1)
    await core.submit("c", "d", "e", "f", id="r2")
    await until(lambda: len(core.engine.calls) == 2)
    await core.finish("r2")  # a second wave that moves is progress, but only until it has landed
    await core.clock.advance(99)
    assert not core.coordinator.stats().stalled and core.engine.replaced == 0
    core.engine.down = 2
    await core.submit("g", id="r3")
    await core.clock.advance(3)
    assert core.engine.replaced == 1
    await core.finish("r1")
    assert await core.codes("r1") == ["engine_stalled", "engine_stalled"]
    await core.clock.advance(5)
    assert not core.coordinator.stats().stalled
    await core.finish("r3")
    assert core.engine.replaced == 1


async def test_while_the_engine_is_being_replaced_readiness_knows_and_nothing_starts(make_core: MakeCore) -> None:
    core = await make_core(stall_timeout_s=10)
    core.engine.script = {"a": ["hang"]}
    await core.submit("a")
    await until(lambda: len(core.engine.calls) == 1)
    core.engine.down = 100
    await core.clock.advance(12)
    assert core.coordinator.stats().stalled
    await core.submit("b", id="r2")
    await settle()
    assert core.coordinator.stats().depth == 1 and len(core.engine.calls) == 1
    await core.clock.advance(200)
    await core.finish("r2")
    assert not core.coordinator.stats().stalled


async def test_slow_but_moving_is_not_wedged(make_core: MakeCore) -> None:
    core = await make_core(stall_timeout_s=10)
    core.engine.script = {"a": ["slow"]}
    await core.submit("a")
    await until(lambda: len(core.engine.calls) == 1)
    for step in range(20):
        core.engine.steps = {"r1/a": (step, 20)}
        await core.clock.advance(8)
    assert core.engine.replaced == 0
    core.engine.gate.set()
    await core.finish()
    assert (await core.coordinator.view("r1", tenant="t")).state is BatchState.SUCCEEDED


async def test_an_engine_that_cannot_tell_its_progress_is_not_wedged_by_that(make_core: MakeCore) -> None:
    core = await make_core(stall_timeout_s=50)

    async def broken() -> dict[str, Any]:
        raise ConnectionError

    core.engine.progress = broken  # type: ignore[method-assign]
    core.engine.script = {"a": ["slow"]}
    await core.submit("a")
    await until(lambda: len(core.engine.calls) == 1)
    await core.clock.advance(45)
    assert core.engine.replaced == 0
    core.engine.gate.set()
    await core.finish()
