"""What bounds the queue's memory and keeps waves apart, and that each of these lines is missed when it goes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.core import Core, image, start_core
from support.fakes import FakeClock, settle, until
from support.mutation import mutated

from cosmos3_serve.errors import QueueFull
from cosmos3_serve.generator import batch_service
from cosmos3_serve.generator.queue.delivery import Delivery
from cosmos3_serve.generator.queue.dispatcher import Dispatcher
from cosmos3_serve.generator.queue.scheduler import WaveScheduler


async def held_bytes(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that wait share one limit of bytes, also those whose acceptances are written at the same time."""
    monkeypatch.setattr(batch_service, "MAX_HELD_BYTES", 100_000)
    core.engine.script["s"] = ["slow"]
    bodies = [image("s", extra={"k": "x" * 40_000}) for _ in range(6)]
    together = [core.submit(body, id=f"r{n}", detached=True) for n, body in enumerate(bodies)]
    answers = await asyncio.gather(*together, return_exceptions=True)
    assert sum(isinstance(answer, QueueFull) for answer in answers) == 4
    with pytest.raises(QueueFull):
        await core.submit(bodies[0], id="late", detached=True)


async def queue_limit(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """So do their samples share the queue's places."""
    core.engine.script.update({f"s{n}": ["slow"] for n in range(40)})
    names = [f"s{n}" for n in range(40)]
    together = [core.submit(*names, id=f"r{n}", detached=True) for n in range(6)]
    answers = await asyncio.gather(*together, return_exceptions=True)
    assert sum(isinstance(answer, QueueFull) for answer in answers) == 4


async def results_in_hand(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """While results wait to be hashed, only so many more are made."""
    gate, record, waiting = asyncio.Event(), Delivery.record, list[int]()

    async def slow(self: Delivery, *args: Any, **options: Any) -> Any:
        waiting.append(1)
        await gate.wait()
        return await record(self, *args, **options)

    monkeypatch.setattr(Delivery, "record", slow)
    await core.submit(*[f"s{n}" for n in range(60)], detached=True)
    await until(lambda: len(waiting) >= 8)
    for _ in range(50):
        await settle()
        await asyncio.sleep(0.002)
    made = sum(len(call) for call in core.engine.calls)
    gate.set()
    await core.finish()
    assert made <= 16  # two full waves in hand and two more in flight


async def quiet_window(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wave that is not full keeps the engine to itself until its coalescing window has closed."""
    await core.submit("a", image("b", num_frames=5), detached=True)
    await core.clock.advance(2.01)
    await until(lambda: len(core.engine.calls) > 0)
    for _ in range(50):
        await settle()
        await asyncio.sleep(0.002)
    assert len(core.engine.calls) == 1
    await core.clock.advance(2.01)
    await until(lambda: len(core.engine.calls) == 2)


OPTIONS: dict[Any, dict[str, Any]] = {
    held_bytes: {},
    queue_limit: {"queue_limit": 100},
    results_in_hand: {"max_batch_size": 4},
    quiet_window: {"max_batch_size": 4, "batch_wait_timeout_s": 2},
}
MUTATIONS: list[tuple[Any, Any, str, str]] = [
    (held_bytes, batch_service.Batches._room, "if held + admitted.size > MAX_HELD_BYTES:", "if False:"),
    (held_bytes, batch_service.Batches._room, "self._promised += admitted.size", "pass"),
    (held_bytes, batch_service.Batches._start, "admitted.size", "0"),
    (queue_limit, WaveScheduler.check, "self.promised", "0"),
    (queue_limit, batch_service.Batches._room, "self._scheduler.promised += len(admitted.tickets)", "pass"),
    (results_in_hand, Dispatcher._start_waves, " and self._landings < self._backlog", ""),
    (results_in_hand, Dispatcher._land, "self._landings += 1", "self._landings += 0"),
    (quiet_window, Dispatcher._start_waves, "if now < self._quiet_until:", "if False:"),
    (quiet_window, Dispatcher._start_waves, "self._quiet_until = now + self._window_s", "pass"),
]


async def run(check: Any, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = await start_core(base, FakeClock(), **OPTIONS[check])
    try:
        await check(core, monkeypatch)
    finally:
        core.engine.gate.set()
        await core.coordinator.close()


@pytest.mark.parametrize("check", OPTIONS)
async def test_it_holds(check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await run(check, tmp_path, monkeypatch)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: f"{m[1].__qualname__}: {m[2]} -> {m[3]}")
async def test_each_of_these_lines_is_missed(
    mutation: tuple[Any, Any, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, function, old, new = mutation
    with mutated(function, old, new), pytest.raises((AssertionError, pytest.fail.Exception)):
        await run(check, tmp_path, monkeypatch)
