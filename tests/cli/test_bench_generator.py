"""`cosmos3 bench generator` as a user runs it: results on stdout; an invalid run ends with exit code 3, no figure."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.bench_generator import TOKEN, BenchGenerator
from support.bench_server import Faults, bench_server

from cosmos3_serve.cli import main


@pytest.fixture(autouse=True)
def a_busy_machine_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether this machine keeps time is not what these tests ask; `test_validity` asks what happens if it does not."""
    monkeypatch.setattr("cosmos3_serve.bench.generator.validity.LATE_S", 30.0)


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPA_COSMOS3_RAY_TOKEN", TOKEN)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main.run(main.build(), "cosmos3", ["bench", "generator", *argv, "--json"])
    return code, json.loads(capsys.readouterr().out)


def measure(server: BenchGenerator, output: Path, *more: str) -> list[str]:
    return ["--endpoint", server.url, "--output", str(output), "--requests", "6", "--arrivals", "burst,closed:2", *more]


def test_a_run_leaves_every_kind_of_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with bench_server(BenchGenerator()) as server:
        code, found = run(capsys, *measure(server, tmp_path / "r", "--shapes", "1x4,1x4+5x2", "--fetch"))
    assert (code, found["valid"], len(found["rows"])) == (0, True, 4)
    names = {path.name for path in (tmp_path / "r").iterdir()}
    assert names >= {"run.json", "samples.jsonl", "table.csv", "report.md", "report.html", "batches.png", "phases.png"}
    assert TOKEN not in "".join(path.read_text() for path in (tmp_path / "r").glob("*.*") if path.suffix != ".png")
    with bench_server(BenchGenerator()) as server:
        code, found = run(capsys, *measure(server, tmp_path / "r"))
    assert (code, found["code"]) == (2, "run_exists") and server.posts == []


def test_an_invalid_run_prints_no_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with bench_server(BenchGenerator(faults=Faults("error", every=4))) as server:
        code, found = run(capsys, *measure(server, tmp_path / "r"))
    assert (code, found["code"]) == (3, "run_invalid")
    assert "samples_per_s" not in json.dumps(found) and not (tmp_path / "r" / "table.csv").exists()


@pytest.mark.parametrize(
    ("more", "code", "name"),
    [
        (["--arrivals", "rush"], 2, "usage"),
        (["--content", "noise"], 2, "usage"),
        (["--arrivals", "poisson"], 2, "usage"),
        (["--arrivals", "burst,burst"], 2, "usage"),
        (["--shapes", "big"], 2, "usage"),
        (["--shapes", "1x4@77"], 2, "usage"),
        (["--token-env", "NOT_SET"], 2, "no_token"),
        (["--endpoint", "http://127.0.0.1:9"], 4, "unreachable"),
    ],
)
def test_bad_calls_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], code: int, name: str
) -> None:
    with bench_server(BenchGenerator()) as server:
        found = run(capsys, *measure(server, tmp_path / "r", *more))
    assert (found[0], found[1]["code"]) == (code, name)
    assert not (tmp_path / "r").exists()
