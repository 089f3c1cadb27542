"""KeptDurations: what was measured outlives the process, for the same engine, checkpoint and device only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.core import PROFILE, Core, MakeCore
from support.fakes import FakeClock, until

from cosmos3_serve.contract.grouping import shape_key
from cosmos3_serve.contract.resolve import resolve_sample
from cosmos3_serve.contract.sample import SampleOverrides
from cosmos3_serve.errors import DeadlineUnreachable
from cosmos3_serve.generator.engines.job import EngineInfo
from cosmos3_serve.generator.queue import kept_durations as module
from cosmos3_serve.generator.queue.durations import Durations
from cosmos3_serve.generator.queue.kept_durations import KeptDurations

INFO = EngineInfo(
    engine="diffusers",
    revision="diffusers-1",
    backend="b",
    checkpoint="tiny",
    checkpoint_revision="r",
    checkpoint_digest="d",
    weights="random",
    device="cpu",
    dtype="float32",
    supported_modes=("text2image",),
)


def shape(frames: int = 1) -> Any:
    sample = SampleOverrides.model_validate({"name": "a", "prompt": "p", "num_frames": frames})
    return shape_key(resolve_sample(sample, PROFILE, seed=0))


async def opened(root: Path, info: EngineInfo = INFO) -> tuple[Durations, KeptDurations]:
    (root / ".cosmos3").mkdir(parents=True, exist_ok=True)
    durations = Durations()
    kept = KeptDurations(root, durations, FakeClock())
    await kept.open(info)
    return durations, kept


async def test_the_next_process_expects_what_this_one_measured(tmp_path: Path) -> None:
    durations, kept = await opened(tmp_path)
    durations.learn([shape(1)], 2.0)
    durations.learn([shape(9), shape(9)], 30.0)
    await kept.save()
    again, _ = await opened(tmp_path)
    assert again.expected(shape(1)) == 2.0 and again.expected(shape(9)) == 15.0
    assert [p.name for p in (tmp_path / ".cosmos3").iterdir()] == ["durations.json"]


async def test_nothing_is_written_when_nothing_was_learned(tmp_path: Path) -> None:
    _, kept = await opened(tmp_path)
    await kept.save()
    assert not list((tmp_path / ".cosmos3").iterdir())


@pytest.mark.parametrize("field", module.KEY)
async def test_another_engine_checkpoint_or_device_begins_anew(tmp_path: Path, field: str) -> None:
    durations, kept = await opened(tmp_path)
    durations.learn([shape()], 2.0)
    await kept.save()
    with capture_logs() as logs:
        other, kept = await opened(tmp_path, INFO.model_copy(update={field: "other"}))
    assert other.expected(shape()) is None
    assert [line["event"] for line in logs] == ["durations_of_another_engine"]
    other.learn([shape()], 5.0)
    await kept.save()
    again, _ = await opened(tmp_path, INFO.model_copy(update={field: "other"}))
    assert again.expected(shape()) == 5.0


GOOD = {"format": 1, "key": {name: str(getattr(INFO, name)) for name in module.KEY}, "seconds": [[["a", 1], 2.0]]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not json",
        b"[]",
        b"{}",
        json.dumps(GOOD).encode()[:-9],
        json.dumps(GOOD | {"seconds": [["a", "soon"]]}).encode(),
        json.dumps(GOOD | {"seconds": [["a", -1]]}).encode(),
        json.dumps(GOOD | {"seconds": [["a", float("nan")]]}).encode(),
        json.dumps(GOOD | {"seconds": [[{"a": 1}, 1.0]]}).encode(),
        json.dumps(GOOD | {"seconds": {"a": 1}}).encode(),
        b"[" * 100_000,
        b" " * (module.MAX_BYTES + 1),
    ],
    ids=range(12),
)
async def test_a_damaged_file_is_left_aside_with_a_warning(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".cosmos3").mkdir()
    path = tmp_path / ".cosmos3" / "durations.json"
    path.write_bytes(content)
    with capture_logs() as logs:
        durations, kept = await opened(tmp_path)
    assert durations.known() == [] and [line["log_level"] for line in logs] == ["warning"]
    durations.learn([shape()], 2.0)
    await kept.save()
    assert (await opened(tmp_path))[0].expected(shape()) == 2.0


async def test_the_good_file_of_that_table_is_good(tmp_path: Path) -> None:
    (tmp_path / ".cosmos3").mkdir()
    (tmp_path / ".cosmos3" / "durations.json").write_text(json.dumps(GOOD))
    assert (await opened(tmp_path))[0].known() == [(("a", 1), 2.0)]


async def test_the_file_is_bounded_and_keeps_what_was_seen_last(tmp_path: Path) -> None:
    durations, kept = await opened(tmp_path)
    for frames in range(3000):
        durations.learn([(*shape(), "x" * 100, frames)], 1.0)
    await kept.save()
    assert (tmp_path / ".cosmos3" / "durations.json").stat().st_size < module.MAX_BYTES
    again, _ = await opened(tmp_path)
    assert len(again.known()) == module.MAX_SHAPES
    assert again.expected((*shape(), "x" * 100, 2999)) == 1.0


async def test_a_disk_that_takes_nothing_costs_only_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    durations, kept = await opened(tmp_path)
    durations.learn([shape()], 2.0)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_file", full)
        await kept.save()
    await kept.save()  # tried again, for it still differs
    assert (await opened(tmp_path))[0].expected(shape()) == 2.0


async def test_a_restarted_service_refuses_at_once_what_it_measured_to_be_too_slow(make_core: MakeCore) -> None:
    """Before, every restart let such a sample run into the cap once more."""

    async def life() -> Core:
        return await make_core(profile=PROFILE.model_copy(update={"wave_cap_s": 300.0}), stall_timeout_s=10_000)

    core = await life()
    core.engine.script["a"] = ["slow"]
    await core.submit("a")
    await until(lambda: len(core.engine.calls) == 1)
    await core.clock.advance(400)
    core.engine.gate.set()
    await core.finish()
    await core.coordinator.close()
    core = await life()
    with pytest.raises(DeadlineUnreachable, match="samples"):
        await core.submit("b", id="r2")
    assert core.engine.calls == []
