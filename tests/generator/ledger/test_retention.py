"""Retention: the oldest ended batches go first, live ones never, and even names are bounded."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.core import Core, MakeCore
from support.disks import failing_disk
from support.fakes import until

from cosmos3_serve.contract.views import BatchState
from cosmos3_serve.errors import Conflict, NotFound
from cosmos3_serve.generator.ledger.batch import Summary
from cosmos3_serve.generator.ledger.retention import RetentionPolicy, to_expire, to_forget


def summary(name: str, ended_at: float, size: int, expired_at: float | None = None) -> Summary:
    return Summary(name, "t", "", BatchState.SUCCEEDED, 0.0, ended_at, size, expired_at, age_at=ended_at)


POLICY = RetentionPolicy(max_age_s=100, max_bytes=1000, max_batches=5, max_names=2)


def test_age_bytes_and_count_each_expire_the_oldest() -> None:
    assert to_expire([summary("a", 0, 1), summary("b", 50, 1)], 120, POLICY) == ["a"]
    assert to_expire([summary("b", 2, 600), summary("a", 1, 600)], 10, POLICY) == ["a"]
    assert to_expire([summary(f"r{n}", n, 1) for n in range(7)], 10, POLICY) == ["r0", "r1"]
    assert to_expire([summary("huge", 1, 5000)], 10, POLICY) == ["huge"]
    assert to_expire([summary("gone", 0, 0, expired_at=1.0)], 1e9, POLICY) == []


def test_the_longest_expired_names_are_given_up() -> None:
    ended = [summary(f"r{n}", n, 0, expired_at=10.0 - n) for n in range(4)] + [summary("kept", 0, 1)]
    assert to_forget(ended, POLICY) == ["r3", "r2"]


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 500)), max_size=12))
def test_what_is_left_fits_and_nothing_younger_goes_before_something_older(rows: list[tuple[int, int]]) -> None:
    ended = [summary(f"r{n}", at, size) for n, (at, size) in enumerate(rows)]
    gone = set(to_expire(ended, 200, POLICY))
    left = [s for s in ended if s.request_id not in gone]
    assert sum(s.bytes for s in left) <= POLICY.max_bytes and len(left) <= POLICY.max_batches
    assert all(200 - s.ended_at <= POLICY.max_age_s for s in left)
    lost = [s.ended_at for s in ended if s.request_id in gone]
    assert not lost or all(s.ended_at >= max(lost) for s in left)


async def test_an_old_batch_expires_and_a_running_one_of_the_same_age_does_not(make_core: MakeCore) -> None:
    core = await make_core(retention_hours=1)
    core.engine.script["slow"] = ["slow"]
    await core.submit("slow", id="running")
    await core.submit("b", "c", "d", "e", id="old")
    await core.finish("old")
    await core.clock.advance(3700)
    await until(lambda: not (core.root / "old").exists())
    view = await core.coordinator.view("old", tenant="t")
    assert view.state is BatchState.EXPIRED and "response" not in view.links
    for ask in (
        core.coordinator.response("old", tenant="t"),
        core.coordinator.artifact("old/b/vision.jpg", tenant="t"),
    ):
        with pytest.raises(NotFound):
            await ask
    with pytest.raises(Conflict) as caught:
        await core.submit("b", "c", "d", "e", id="old")
    assert caught.value.stable_code == "request_id_expired"
    assert (core.root / "running").exists()
    core.engine.gate.set()
    await core.finish("running")


async def test_bytes_on_disk_are_bounded_while_batches_keep_coming(make_core: MakeCore) -> None:
    core = await make_core(retention_bytes=40_000)
    for n in range(30):
        await core.submit("a", id=f"r{n}")
        await core.finish(f"r{n}")
        await core.clock.advance(31)
        await until(lambda: _used(core) <= 60_000)
    assert (await core.coordinator.view("r29", tenant="t")).state is BatchState.SUCCEEDED
    assert (await core.coordinator.view("r0", tenant="t")).state is BatchState.EXPIRED


async def test_a_wall_clock_that_jumps_expires_nothing(make_core: MakeCore, monkeypatch: pytest.MonkeyPatch) -> None:
    core = await make_core(retention_hours=1)
    for n in range(3):
        await core.submit("a", id=f"r{n}")
        await core.finish(f"r{n}")
    right = core.clock.now
    monkeypatch.setattr(core.clock, "now", lambda: right() + 365 * 86400)
    await rounds(core, 62)
    await core.submit("a", id="r3")
    await core.finish("r3")
    monkeypatch.setattr(core.clock, "now", right)
    await rounds(core, 62)
    assert [view.state.value for view in await core.coordinator.list(tenant="t")] == ["succeeded"] * 4
    await rounds(core, 3700)  # and an hour of running is an hour all the same
    await until(lambda: not any((core.root / f"r{n}").exists() for n in range(4)))


async def test_the_time_between_two_processes_counts(make_core: MakeCore) -> None:
    core = await make_core(retention_hours=1)
    await core.submit("a")
    await core.finish()
    await core.coordinator.close()
    core.clock.time += 3700
    core = await make_core(retention_hours=1)
    await rounds(core, 31)
    await until(lambda: not (core.root / "r1").exists())


async def test_retention_frees_space_on_a_disk_that_takes_nothing(
    make_core: MakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = await make_core(retention_hours=1)
    await core.submit("a")
    await core.finish()
    with failing_disk(monkeypatch):
        core.clock.time += 3700
        await rounds(core, 62)
        await until(lambda: not (core.root / "r1").exists())
    await rounds(core, 62)
    assert (await core.coordinator.view("r1", tenant="t")).state is BatchState.EXPIRED


async def rounds(core: Core, seconds: int) -> None:
    """Let time go by in rounds of the retention, each with what it does in threads."""
    for _ in range(0, seconds, 31):
        await core.clock.advance(31)
        await asyncio.sleep(0.005)


def _used(core: Core) -> int:
    total = 0
    for folder, _, names in os.walk(core.root):  # unlike rglob it bears that a folder goes while it looks
        for name in names:
            if name.startswith("ledger.sqlite"):
                continue  # it belongs to no batch
            with suppress(FileNotFoundError):
                total += Path(folder, name).stat().st_size
    return total
