"""A run with content: prompts are captions of scenes, and what is fetched is judged by what it shows."""

from pathlib import Path
from typing import Any

import pytest
from support.bench_generator import TOKEN, BenchGenerator
from support.bench_server import bench_server
from support.scenes import scene_bytes

from cosmos3_serve.bench.generator import report, scenes
from cosmos3_serve.bench.generator.arrivals import Arrivals
from cosmos3_serve.bench.generator.records import Run, Workload
from cosmos3_serve.bench.generator.run import run
from cosmos3_serve.bench.generator.shapes import Mix
from cosmos3_serve.errors import UsageError

MIXES = ("1x4@256", "9x8@256")


@pytest.fixture(autouse=True)
def a_busy_machine_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosmos3_serve.bench.generator.validity.LATE_S", 30.0)


def work(**changed: Any) -> Workload:
    return Workload(
        arrivals=(Arrivals.parse("burst"),),
        mixes=tuple(map(Mix.parse, MIXES)),
        **{"requests": 4, "samples": 2, "fetch": True, "content": "scenes", **changed},
    )


def drawn(sample: dict[str, Any], off: int = 0) -> bytes:
    return scene_bytes(scenes.asked(sample["seed"] + off, sample).scene, sample["num_frames"])


async def records(server: BenchGenerator, workload: Workload) -> Run:
    with bench_server(server):
        return await run(server.url, TOKEN, workload, timeout_s=120)


async def test_samples_that_show_their_scenes_are_told_as_a_share(tmp_path: Path) -> None:
    server = BenchGenerator(draw=drawn)
    found = await records(server, work())
    assert [row.shown for row in report.write(found, tmp_path / "run")] == [1.0, 1.0]
    assert "1x4@256, repeat 1: 100.0%" in (tmp_path / "run" / "report.md").read_text()
    assert report.read(tmp_path / "run") == found
    prompts = [sample["prompt"] for _, body in server.posts for sample in body["samples"]]
    assert len(set(prompts)) > 12 and all(said.startswith("A ") for said in prompts)
    assert {s["aspect_ratio"] for _, body in server.posts for s in body["samples"] if s["num_frames"] == 1} == {"1,1"}


async def test_samples_that_are_mixed_up_are_not(tmp_path: Path) -> None:
    """Each shows what its neighbour was asked for."""
    found = await records(BenchGenerator(draw=lambda sample: drawn(sample, 1)), work())
    rows = report.write(found, tmp_path / "run")
    assert max(row.shown or 0.0 for row in rows) < 0.3


async def test_without_fetching_nothing_is_judged(tmp_path: Path) -> None:
    found = await records(BenchGenerator(), work(fetch=False))
    assert {sample.shown for sample in found.samples} == {None}
    assert [row.shown for row in report.write(found, tmp_path / "run")] == [None, None]
    assert "block-world" not in (tmp_path / "run" / "report.md").read_text()


async def test_what_is_no_picture_is_not_judged() -> None:
    found = await records(BenchGenerator(), work())
    assert {sample.shown for sample in found.samples} == {None}


async def test_judging_needs_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosmos3_serve.blockworld.asked.find_spec", lambda name: None)
    server = BenchGenerator()
    with pytest.raises(UsageError, match="numpy"):
        await records(server, work())
    assert server.posts == []
