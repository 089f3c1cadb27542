"""A benchmark whose run was invalid says why, and not one figure."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FIGURE = re.compile(r"\d+\.\d|MB/s|artifacts/s")
# The benchmark as it is, with one thing of the world around it changed before it starts.
SABOTAGED = """
import sys
sys.path.insert(0, {benchmarks!r})
import bench_client
from measure import publishing
{sabotage}
sys.exit(bench_client.main(["--small", "3", "--large-mb", "0", "--to", "folder", "--out", {out!r}]))
"""
FAILED_SAMPLE = """
from support.baseline_server import Faults
class Worse(publishing.TimedServer):
    def __init__(self, *args, **more):
        super().__init__(*args, **more, faults=Faults(failing={"s1": "error"}))
bench_client.publishing = lambda base, loads, places: publishing.publishing(base, loads, places, Worse)
"""
WRONG_BYTES = """
from support.baseline_server import Faults
class Worse(publishing.TimedServer):
    def __init__(self, *args, **more):
        super().__init__(*args, **more, faults=Faults(flip_bytes={"vision.jpg": 99}))
bench_client.publishing = lambda base, loads, places: publishing.publishing(base, loads, places, Worse)
"""
# The client is content, but what it left is not what the server had.
CHANGED_AFTERWARDS = """
true = publishing.client_process.outcome
def outcome(result):
    path = next(result.parent.joinpath("out", "artifacts").rglob("vision.jpg"))
    path.write_bytes(path.read_bytes() + b"x")
    return true(result)
publishing.client_process.outcome = outcome
"""
LOST_AFTERWARDS = """
import json
true = publishing.client_process.outcome
def outcome(result):
    provenance = result.parent / "out" / "provenance.json"
    body = json.loads(provenance.read_text())
    body["artifacts"].pop()
    provenance.write_text(json.dumps(body))
    return true(result)
publishing.client_process.outcome = outcome
"""


def run(sabotage: str, out: Path) -> subprocess.CompletedProcess[str]:
    code = SABOTAGED.format(benchmarks=str(BENCHMARKS), sabotage=sabotage, out=str(out))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("sabotage", "reason"),
    [
        (FAILED_SAMPLE, "the client failed"),
        (WRONG_BYTES, "the client failed"),
        (CHANGED_AFTERWARDS, "1 with other bytes"),
        (LOST_AFTERWARDS, "1 files missing"),
    ],
    ids=["a failed sample", "wrong bytes", "changed afterwards", "lost afterwards"],
)
def test_an_invalid_run_has_no_figures(tmp_path: Path, sabotage: str, reason: str) -> None:
    ran = run(sabotage, tmp_path / "results")
    assert ran.returncode == 3, ran.stderr
    assert ran.stdout == ""
    assert ran.stderr.startswith("INVALID RUN, no figures: ") and reason in ran.stderr
    assert not FIGURE.search(ran.stderr)
    assert not (tmp_path / "results").exists()


def test_a_valid_run_has_them(tmp_path: Path) -> None:
    ran = run("", tmp_path / "results")
    assert ran.returncode == 0, ran.stderr
    (found,) = (tmp_path / "results").glob("*-client.json")
    body = json.loads(found.read_text())
    assert body["conditions"]["weights"] == "random"
    (figures,) = body["figures"]["Publishing"].values()
    assert figures["artifacts"] == 3 and figures["artifacts_s"] > 0
    text = found.with_suffix(".md").read_text()
    assert FIGURE.search(text) and text.strip() == ran.stdout.strip()
    assert not re.search(r"hostname|/tmp|/home", text + found.read_text())
