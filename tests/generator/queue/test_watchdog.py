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


async def test_a_wave_that_waited_behind_the_stuck_one_runs_again(make_core: MakeCore) -> None:
    core = await make_core(stall_timeout_s=100)
    core.engine.script = {"huge": ["hang"], **{name: ["hang", "ok"] for name in "wxyz"}}
    await core.submit("huge", id="evil")
    await until(lambda: len(core.engine.calls) == 1)
    await core.clock.advance(1)
    await core.submit("w", "x", "y", "z", id="innocent")
    await until(lambda: len(core.engine.calls) == 2)
    await core.clock.advance(105)
    await core.finish("evil")
    await core.finish("innocent")
    assert await core.codes("evil") == ["engine_stalled"]
    assert await core.codes("innocent") == ["succeeded"] * 4 and core.engine.replaced == 1


async def test_what_the_engine_told_of_is_suspected_before_what_it_got_first(make_core: MakeCore) -> None:
    core = await make_core(stall_timeout_s=100)
    core.engine.script = {"first": ["hang", "ok"], "begun": ["hang"]}
    await core.submit("first", id="r1")
    await until(lambda: len(core.engine.calls) == 1)
    await core.clock.advance(1)
    await core.submit("begun", "x", "y", "z", id="r2")
    await until(lambda: len(core.engine.calls) == 2)
    core.engine.steps = {"r2/begun": (1, 4)}
    await core.clock.advance(105)
    await core.finish("r1")
    await core.finish("r2")
    assert await core.codes("r1") == ["succeeded"] and await core.codes("r2") == ["engine_stalled"] * 4


async def test_a_replica_that_loads_is_not_wedged_unless_it_loads_for_ever(make_core: MakeCore) -> None:
    core = await make_core(stall_timeout_s=100)
    core.engine.script = {"a": ["hang"]}
    core.engine.is_loading = True
    await core.submit("a")
    await until(lambda: len(core.engine.calls) == 1)
    for _ in range(9):
        await core.clock.advance(105)
    assert core.engine.replaced == 0
    for _ in range(40):
        await core.clock.advance(105)
    await core.finish()
    assert core.engine.replaced == 1 and await core.codes() == ["engine_stalled"]
