"""The comparison's script over doubles of both fleets: what it writes, and what it says where one is missing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import bench_reasoner_compare as script
import pytest
from measure import side_by_side
from measure.result import InvalidRun
from measure.side_by_side import Outcome
from support.bench_runs import made
from support.bench_server import BenchServer, Faults, bench_server

FAILED = "a process of Dynamo ended: dynamo.vllm-2: ImportError: no such name"


class Service:
    """In place of our service."""

    pid, token = os.getpid(), "t"

    def __init__(self, url: str) -> None:
        self.url, self.stopped = url, 0

    def launch(self) -> Self:
        return self

    def wait_ready(self) -> Self:
        return self

    def stop(self) -> None:
        self.stopped += 1


class Theirs:
    """In place of Dynamo's fleet."""

    pids = (os.getpid(),)
    starts = True
    urls: dict[str, str]

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def launch(self) -> Self:
        return self

    def wait(self) -> None:
        if not self.starts:
            raise InvalidRun(FAILED)

    def url(self, profile: str) -> str:
        return self.urls[profile]

    def stop(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As in real runs, clips are made once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Service]]:
    with ExitStack() as stack:
        doubles = {p: stack.enter_context(bench_server(BenchServer(profile=p))) for p in script.PROFILES}
        foreign = {p: stack.enter_context(bench_server(BenchServer(profile=p, foreign=True))) for p in script.PROFILES}
        made = {profile: Service(double.url) for profile, double in doubles.items()}
        monkeypatch.setattr(script, "fleet", lambda cache, profile: made[profile])
        monkeypatch.setattr(script, "DynamoFleet", Theirs)
        monkeypatch.setattr(script, "ensure_tiny", lambda cache: cache)
        threads = {"OMP_NUM_THREADS": "3"}
        monkeypatch.setattr(script.dynamo_fleet, "engine", lambda model, workers: ([], threads))
        monkeypatch.setattr(script.dynamo_fleet, "find", lambda: (Path("python"), "1.6.1 with vLLM 0.31.0"))
        monkeypatch.setattr(script, "find_interpreter", lambda named: type("Found", (), {"version": (0, 32, 0)}))
        monkeypatch.setattr(side_by_side, "IDLE_S", 0.1)
        Theirs.urls, Theirs.starts = {p: double.url for p, double in foreign.items()}, True
        yield made


def run(tmp_path: Path, cache: Path, *more: str) -> int:
    argv = ["--short", "--sizes", "32x32", "--out", str(tmp_path), "--cache", str(cache)]
    return script.main([*argv, "--max-load", "1000", *more])


def written(tmp_path: Path) -> tuple[str, dict[str, Any]]:
    (page,), (body,) = tmp_path.glob("*-reasoner-compare-short.md"), tmp_path.glob("*-reasoner-compare-short.json")
    return page.read_text(), json.loads(body.read_text())


def test_both_are_in_the_result_and_nothing_stays(services: dict[str, Service], tmp_path: Path, cache: Path) -> None:
    assert run(tmp_path, cache, "--keep", str(tmp_path / "kept")) == 0
    page, body = written(tmp_path)
    assert "cosmos3-serve with vLLM 0.32.0; Dynamo 1.6.1 with vLLM 0.31.0" in page and "weights: random" in page
    assert "3 thread(s) each" in page, "as the engines' settings say"
    runs = body["figures"]["Both systems, both profiles"]["runs"]
    assert set(runs) == {f"{s}, {p}" for s in (script.OURS, script.DYNAMO) for p in script.PROFILES}
    assert str(tmp_path) not in page + json.dumps(body)
    assert [service.stopped for service in services.values()] == [1, 1]
    assert sorted(path.name for path in cache.iterdir()) == ["clips-32x32"]
    kept = tmp_path / "kept" / "dynamo-1.6.1-round-robin" / "requests.jsonl"
    assert len(kept.read_text().splitlines()) == 4 * 3


@pytest.mark.parametrize(("more", "why"), [((), FAILED), (("--without-dynamo",), "not asked for")])
def test_ours_alone_says_so(
    services: dict[str, Service], tmp_path: Path, cache: Path, more: tuple[str, ...], why: str
) -> None:
    Theirs.starts = False
    assert run(tmp_path, cache, *more) == 0
    page, body = written(tmp_path)
    assert f"**Dynamo was not measured**: {why}" in page
    assert all(script.DYNAMO not in label for label in body["figures"]["Both systems, both profiles"]["runs"])


async def invalid_costs(contenders: Any, *_: Any) -> Outcome:
    """Two valid runs, and costs that are not: as many findings as there are runs."""
    run = made([2.0])
    runs = {contender.label: run for contender in contenders}
    invalid = {f"costs of {name}": ["warm_is_cold: so it is"] for name in (script.OURS, script.DYNAMO)}
    cpu, costs = {label: [1.0] for label in runs}, {script.OURS: run, script.DYNAMO: run}
    return Outcome("32x32", runs=runs, costs=costs, cpu=cpu, invalid=invalid)


def test_costs_that_are_invalid_leave_the_runs_valid_and_are_named(
    services: dict[str, Service], tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "side_by_side", invalid_costs)
    assert run(tmp_path, cache, "--without-dynamo") == 0
    page, body = written(tmp_path)
    assert f"**{script.OURS} is left out**: warm_is_cold: so it is" in page
    assert set(body["figures"]["The capacity model"]["left_out"]) == {script.OURS, script.DYNAMO}


def test_nothing_valid_is_no_result(
    services: dict[str, Service], tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worse = BenchServer(profile="session-affinity", faults=Faults("short", every=5))
    robin = BenchServer(profile="round-robin", faults=Faults("short", every=5))
    with bench_server(worse), bench_server(robin):
        services["session-affinity"].url, services["round-robin"].url = worse.url, robin.url
        assert run(tmp_path, cache, "--without-dynamo") == 3
    said = capsys.readouterr()
    assert said.out == "" and "INVALID RUN, no figures: no run is valid" in said.err and "output_length" in said.err
    assert not list(tmp_path.glob("*.md")) and not list(tmp_path.glob("*.json"))
    assert [service.stopped for service in services.values()] == [1, 1], "nothing stays"
