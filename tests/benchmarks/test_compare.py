"""Two systems side by side, over doubles: what is valid has a column, what is not has none, and nobody is favoured."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from pathlib import Path

import bench_reasoner_compare as script
import pytest
from measure import dynamo_fleet
from measure import side_by_side as measured
from measure.compared import sections
from measure.dynamo_fleet import DynamoFleet
from measure.result import InvalidRun
from measure.side_by_side import PROFILES, Contender, Outcome, Plan, side_by_side
from support.bench_server import BenchServer, Faults, bench_server

from cosmos3_serve.bench.reasoner import Known
from cosmos3_serve.bench.videos import Recipe, make_videos

OURS, THEIRS = "cosmos3-serve", "Dynamo 1.6.1"


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("clips")
    sizes = [folder / "large", folder / "small"]
    for size, width in zip(sizes, (64, 32), strict=True):
        make_videos(size, plan(sizes).clips, Recipe(seconds=1, fps=2, width=width, height=32), workers=1)
    return sizes


@pytest.fixture(autouse=True)
def hardly_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """What doubles do while nobody asks is no figure."""
    monkeypatch.setattr(measured, "IDLE_S", 0.1)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """No weights: what the engines' settings are derived from."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"text_config": {}, "vision_config": {}}')
    return tmp_path / "model"


def plan(sizes: list[Path], **changed: object) -> Plan:
    fields = {"videos": 2, "questions": 3, "tokens": 4, "concurrency": 2, "repeats": 2} | changed
    return Plan(sizes, **fields)  # type: ignore[arg-type]


@contextmanager
def contenders(faulty: str = "", *, more_tokens: int = 0) -> Iterator[list[Contender]]:
    """Ours twice and a foreign one twice, as real ones stand there; `faulty` is the fault of the foreign affinity."""
    with ExitStack() as stack:
        found = []
        for system, foreign in ((OURS, False), (THEIRS, True)):
            for profile in PROFILES:
                fault = Faults(faulty, every=7) if foreign and profile == "session-affinity" else Faults()
                double = BenchServer(profile=profile, foreign=foreign, faults=fault)
                double.text_tokens += more_tokens if foreign else 0
                server = stack.enter_context(bench_server(double))
                known = Known(server=system, weights="random", worker_ids=foreign)
                found.append(Contender(system, profile, server.url, "", known, lambda: [os.getpid()]))
        yield found


async def run(plan: Plan, base: Path, faulty: str = "", *, more_tokens: int = 0) -> tuple[Outcome, list[str]]:
    said: list[str] = []
    with contenders(faulty, more_tokens=more_tokens) as all_of_them:
        return await side_by_side(all_of_them, plan, base, said.append), said


@pytest.fixture(scope="module")
def measurement(clips: list[Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, list[str]]:
    """One valid measurement, for every test that only reads it."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(measured, "IDLE_S", 0.1)
        return asyncio.run(run(plan(clips), tmp_path_factory.mktemp("valid")))


def test_every_valid_run_has_a_column_with_its_spread(
    clips: list[Path], measurement: tuple[Outcome, list[str]]
) -> None:
    outcome, said = measurement
    assert outcome.invalid == {} and outcome.size == "64x32"
    table, ratios, model = sections(outcome, plan(clips), "versions of both")
    assert table.rows[0] == ["", *(f"{system}, {profile}" for system in (OURS, THEIRS) for profile in PROFILES)]
    by_name = {row[0]: row[1:] for row in table.rows}
    assert all("–" in cell for cell in by_name["questions per second"])
    assert all(cell for row in by_name.values() for cell in row)
    assert by_name["questions by replica"][0] == "3/3; 3/3"
    assert "random weights" in table.note and "versions of both" in table.note and "64x32" in table.note
    assert [row[0] for row in ratios.rows[1:]] == [
        f"{OURS}, session-affinity over {OURS}, round-robin",
        f"{THEIRS}, session-affinity over {THEIRS}, round-robin",
        f"{OURS}, round-robin over {THEIRS}, round-robin",
        f"{OURS}, session-affinity over {THEIRS}, session-affinity",
    ]
    assert [row[:2] for row in model.rows[1:]] == [[s, p] for s in (OURS, THEIRS) for p in PROFILES]
    assert "left_out" not in model.figures
    checked = model.figures[OURS]["checked"][0]
    assert checked["measured_ttft_ms"] > 0 and checked["ttft_error"] > -1 and checked["calibrated"] == ""
    blind = deepcopy(outcome)
    for label in list(blind.costs):  # a server that does not count cached tokens
        blind.costs[label].requests = [
            request.model_copy(update={"cached_tokens": None}) for request in blind.costs[label].requests
        ]
    untold = sections(blind, plan(clips), "v")[-1]
    assert set(untold.figures["left_out"]) == {OURS, THEIRS} and "no cold or no warm question" in untold.note
    turns = [text.partition(":")[0] for text in said if text.startswith("repeat")]
    first = [f"{system}, {profile}" for system in (OURS, THEIRS) for profile in PROFILES]
    assert turns == [f"repeat 1, {name}" for name in first] + [f"repeat 2, {name}" for name in first[1:] + first[:1]]


def test_both_systems_are_asked_the_same(measurement: tuple[Outcome, list[str]]) -> None:
    outcome, _ = measurement
    asked = {
        label: sorted((r.repeat, r.video, r.turn) for r in found.requests) for label, found in outcome.runs.items()
    }
    for profile in PROFILES:
        assert asked[f"{OURS}, {profile}"] == asked[f"{THEIRS}, {profile}"]
    videos = {label: {video for _, video, _ in requests} for label, requests in asked.items()}
    assert not videos[f"{OURS}, round-robin"] & videos[f"{OURS}, session-affinity"], "one engine may serve both"


@pytest.mark.parametrize(("fault", "code"), [("short", "output_length"), ("forget", "warm_is_cold")])
async def test_an_invalid_run_has_no_column(clips: list[Path], tmp_path: Path, fault: str, code: str) -> None:
    outcome, _ = await run(plan(clips, repeats=1), tmp_path, fault)
    bad = f"{THEIRS}, session-affinity"
    assert code in "".join(outcome.invalid[bad])
    found = sections(outcome, plan(clips, repeats=1), "v")
    assert bad not in found[0].rows[0] and len(found[0].rows[0]) == 4
    assert f"{bad}: invalid, no figures" in found[0].note and code in found[0].note
    assert bad not in found[0].figures["runs"] and bad not in found[0].figures["cpu_ms_per_question"]
    assert all(bad not in row[0] for row in found[1].rows)


async def test_systems_that_make_other_prompts_of_a_clip_are_not_compared(clips: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InvalidRun, match="other prompts"):
        await run(plan(clips), tmp_path, more_tokens=17)


async def test_smaller_clips_are_taken_where_time_is_short_and_said(clips: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InvalidRun, match="no size of clips fits"):
        await run(plan(clips, budget_s=0.0), tmp_path / "none")
    outcome, said = await run(plan([clips[1]], repeats=1), tmp_path / "one")
    assert outcome.size == "32x32" and any(text.startswith("32x32: the repeats will take about") for text in said)


async def test_too_few_clips_are_no_run(clips: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InvalidRun, match="clips"):
        await run(plan(clips, repeats=3), tmp_path)


def test_dynamos_engines_get_the_settings_of_ours(tmp_path: Path, model: Path) -> None:
    fleet = DynamoFleet(Path("python"), tmp_path, model)
    robin, affinity, *workers = fleet.commands()
    assert "--router-session-affinity-ttl-secs" not in robin and affinity[-1] == "300"
    assert len(workers) == 2 and workers[0] == workers[1]
    argv, env = dynamo_fleet.engine(model, 2)
    assert workers[0][-len(argv) :] == argv and "--enable-prefix-caching" in argv and "--enforce-eager" in argv
    assert not [word for word in argv if word in dynamo_fleet.OF_THE_SERVER or word == "nowhere.invalid"]
    environ = fleet.environ()
    assert environ["OMP_NUM_THREADS"] == env["OMP_NUM_THREADS"] and environ["DYN_MM_VIDEO_NUM_FRAMES"] == "-1"
    assert environ["DYN_TCP_RPC_HOST"] == "127.0.0.1" and "PYTHONPATH" not in environ


def test_a_dynamo_that_does_not_start_says_why_and_leaves_nothing(tmp_path: Path, model: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\necho \"ImportError: no such thing in $PWD\" >&2\nexec {sys.executable} -c 'exit(1)'\n"
    )
    python.chmod(0o755)
    began = time.monotonic()
    fleet = DynamoFleet(python, tmp_path / "dynamo", model)
    with fleet, pytest.raises(InvalidRun, match="ImportError: no such thing in …") as said:
        fleet.launch().wait(30)
    assert str(tmp_path) not in str(said.value)
    assert time.monotonic() - began < 25
    assert not [pid for pid in fleet.pids if Path(f"/proc/{pid}").exists()]


def test_a_python_without_dynamo_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(dynamo_fleet.PYTHON_ENV, sys.executable)
    with pytest.raises(InvalidRun, match="without ai-dynamo and vLLM"):
        dynamo_fleet.find()
    monkeypatch.delenv(dynamo_fleet.PYTHON_ENV)
    assert dynamo_fleet.find() is None


def test_nothing_is_measured_without_an_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("COSMOS3_VLLM_PYTHON", sys.executable + "-none")
    assert script.main(["--short", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "SKIPPED, nothing measured" in said.err and said.out == "" and not list(tmp_path.iterdir())
