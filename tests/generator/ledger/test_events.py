"""Events: whoever watches sees every state in order, once, whether early, late, again or after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from support.core import Core, MakeCore
from support.fakes import settle, until

from cosmos3_serve.contract.views import BatchEvent
from cosmos3_serve.errors import NotFound
from cosmos3_serve.generator.ledger.events import EventHub, instant


def told(events: Sequence[BatchEvent]) -> list[str]:
    return [f"{e.sample or e.type}:{e.code or e.state}" for e in events if e.type != "progress"]


async def collect(core: Core, id: str = "r1", after: int = 0) -> list[BatchEvent]:
    return [event async for event in core.coordinator.events(id, tenant="t", last_event_id=after)]


WHOLE = ["batch:queued", "batch:running", "a:running", "b:running", "a:succeeded", "b:engine_failed", "end:failed"]


async def whole(core: Core) -> list[BatchEvent]:
    core.engine.script["b"] = [RuntimeError("x")]
    core.engine.script["a"] = ["slow"]
    await core.submit("a", "b")
    watching = asyncio.create_task(collect(core))
    await until(lambda: len(core.engine.calls) == 1)
    core.engine.gate.set()
    return await watching


async def test_a_watcher_sees_everything_in_order_and_the_stream_ends(core: Core) -> None:
    live = await whole(core)
    assert sorted(told(live)) == sorted(WHOLE) and told(live)[-1] == "end:failed"
    numbers = [e.id for e in live]
    assert numbers == sorted(set(numbers))
    assert core.coordinator._hub.watched == 0


async def test_who_comes_late_or_again_sees_the_same(make_core: MakeCore) -> None:
    core = await make_core()
    live = await whole(core)
    assert await collect(core) == live
    for seen in range(len(live)):
        assert await collect(core, after=live[seen].id) == live[seen + 1 :]
    await core.coordinator.close()
    core = await make_core()
    assert await collect(core) == live


async def test_steps_are_told_and_do_not_pile_up(core: Core) -> None:
    core.engine.script["a"] = ["slow"]
    await core.submit("a")
    stream = core.coordinator.events("r1", tenant="t")
    seen = [await anext(stream) for _ in range(3)]
    assert told(seen) == ["batch:queued", "batch:running", "a:running"]
    await until(
        lambda: bool(core.engine.calls)
    )  # its folder is made in a thread first; the clock would not wait for it
    for step in range(1, 50):
        core.engine.steps = {"r1/a": (step, 100)}
        await core.clock.advance(1)
    event = await anext(stream)
    assert (event.type, event.step, event.total_steps, event.sample) == ("progress", 49, 100, "a")
    core.engine.gate.set()
    rest = [e async for e in stream]
    assert told(rest) == ["a:succeeded", "end:succeeded"]


async def test_a_reopened_batch_ends_its_stream_only_at_the_new_end(core: Core) -> None:
    core.engine.script["a"] = [RuntimeError("x"), RuntimeError("x"), "slow"]
    await core.submit("a")
    await core.finish()
    await core.submit("a")
    watching = asyncio.create_task(collect(core))
    await settle()
    core.engine.gate.set()
    assert told(await watching) == [
        "batch:queued",
        "batch:running",
        "a:running",
        "a:engine_failed",
        "batch:queued",
        "a:running",
        "a:succeeded",
        "end:succeeded",
    ]


async def test_an_expired_batch_says_so(make_core: MakeCore) -> None:
    core = await make_core(retention_hours=1)
    await core.submit("a")
    await core.finish()
    await core.clock.advance(3700)
    await until(lambda: not (core.root / "r1").exists())
    assert told(await collect(core)) == ["end:expired"]
    with pytest.raises(NotFound):
        core.coordinator.events("unknown", tenant="t")


async def test_a_slow_watcher_of_a_busy_batch_loses_nothing() -> None:
    """The shared tail is 4 long; a watcher that sleeps through 100 events reads the ledger instead, page by page."""
    hub = EventHub(tail=4)
    journal: list[BatchEvent] = [BatchEvent(id=1, type="batch", state="queued", at=instant(0))]

    async def replay(after: int) -> list[BatchEvent]:
        await asyncio.sleep(0)
        return [event for event in journal if event.id > after][:7]

    stream = hub.follow("r", at=1, after=0, replay=replay)
    seen = [await anext(stream)]
    for number in range(2, 102):
        event = BatchEvent(id=number, type="sample", sample="a", state="running", at=instant(0))
        journal.append(event)
        hub.publish("r", [event])
        if number % 30 == 0:
            seen.append(await anext(stream))
    end = BatchEvent(id=102, type="end", state="succeeded", at=instant(0))
    journal.append(end)
    hub.publish("r", [end])
    seen += [event async for event in stream]
    assert [e.id for e in seen] == list(range(1, 103))
    assert hub.watched == 0


async def test_nothing_is_kept_for_batches_that_nobody_watches() -> None:
    hub = EventHub()
    hub.publish("r", [BatchEvent(id=1, type="batch", state="queued", at=instant(0))])
    hub.progress("r", "a", 1, 2, 0.0)
    assert hub.watched == 0


async def test_a_watcher_who_leaves_is_forgotten(core: Core) -> None:
    core.engine.script["a"] = ["slow"]
    await core.submit("a")
    task = asyncio.create_task(collect(core))
    await until(lambda: core.coordinator._hub.watched == 1)
    task.cancel()
    await asyncio.wait([task])
    assert core.coordinator._hub.watched == 0
    core.engine.gate.set()
    await core.finish()
