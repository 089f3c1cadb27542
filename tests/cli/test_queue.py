"""Queues as a user calls them: one command to begin and to continue, and `cosmos3 queue …` beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.ledger_server import LedgerServer
from support.queues import Site, audit

from cosmos3_serve.cli import main


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPA_COSMOS3_RAY_TOKEN", "support-token")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("NPA_COSMOS3_RAY_ENDPOINT", raising=False)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with LedgerServer(tmp_path / "server", steps=1) as server:
        yield Site(tmp_path, server)


def run(*argv: str) -> int:
    return main.run(main.build(), "cosmos3", argv)


def batch(site: Site, path: Path | str, *more: str) -> list[str]:
    out = ["--output-path", str(site.out), "--endpoint", site.server.endpoint]
    return ["ray-batch", "--input-path", str(path), *out, *more]


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_ray_batch_resume_continues_a_queue(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """As the Job calls it, which knows nothing of queues; options are as they were at the start."""
    site.limit(4)
    path = site.lines(10)
    resume = ["ray-batch", "--resume", "--json", "--output-path", str(site.out)]
    assert run(*resume) == 2
    assert said(capsys)["code"] == "no_such_run"
    site.server.faults.failing = {"s00003": "error"}
    assert run(*batch(site, path, "--json", "--part-attempts", "1")) in (4, 5)
    capsys.readouterr()
    assert run(*resume, "--allow-partial") == 0
    assert said(capsys)["schema_version"] == "cosmos3.queue.index.v1"
    assert run(*resume, "--input-path", str(site.lines(11))) == 2
    assert said(capsys)["code"] == "queue_differs"


def test_from_the_first_command_to_the_index(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.limit(4)
    path = site.lines(10)
    assert run(*batch(site, path, "--dry-run", "--json")) == 0
    assert [part["samples"] for part in said(capsys)["parts"]] == [4, 4, 2]
    assert run("queue", "status", str(site.out), "--json") == 2
    assert said(capsys)["code"] == "no_such_queue"
    assert run(*batch(site, path, "--json")) == 0
    index = said(capsys)
    assert index == audit(site.out)
    assert run("queue", "status", str(site.out), "--json") == 0
    found = said(capsys)
    assert (found["state"], found["outcome"], found["samples"]["succeeded"]) == ("ended", "completed", 10)
    assert run("queue", "status", str(site.out)) == 0
    assert "3 completed" in capsys.readouterr().out
    for command in ("pause", "cancel"):
        assert run("queue", command, str(site.out), "--json") == 2
        assert said(capsys)["code"] == "queue_ended"
    assert run("queue", "resume", str(site.out), "--json") == 0
    assert said(capsys) == index


def test_failed_samples_are_an_exit_code_and_listed(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.server.faults.failing = {"s00001": "error"}
    path = site.lines(3)
    assert run(*batch(site, path, "--json")) == 4
    assert said(capsys)["code"] == "samples_failed"
    assert run("queue", "status", str(site.out)) == 0
    assert "s00001: guardrail_blocked" in capsys.readouterr().out
    assert run(*batch(site, path, "--json", "--allow-partial")) == 0
    assert said(capsys)["status"] == "partial"


def test_one_batch_is_not_for_several_services(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    path = site.tmp / "batch.json"
    path.write_text(json.dumps([{"name": "a", "model_mode": "reasoner", "prompt": "p"}]))
    assert run(*batch(site, path, "--endpoint", "http://other:1", "--json")) == 2
    assert "one batch goes to one service" in said(capsys)["detail"]


def test_services_of_the_environment(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPA_COSMOS3_RAY_ENDPOINT", f"{site.server.endpoint}, http://127.0.0.1:9")
    argv = ["ray-batch", "--input-path", str(site.lines(3)), "--output-path", str(site.out), "--json", "--dry-run"]
    assert run(*argv) == 0
    assert said(capsys)["endpoints"] == [site.server.endpoint, "http://127.0.0.1:9"]


def test_ctrl_c_leaves_a_queue_that_resumes(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.limit(5)
    site.server.step_s = 0.05  # 40 parts: on a busy machine the signal still comes before the end
    argv = [sys.executable, "-m", "cosmos3_serve.cli.main", *batch(site, site.lines(200), "--json")]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ.copy())
    results = site.out / ".cosmos3-queue/results"
    until = time.monotonic() + 60
    while not (results.is_dir() and any(results.glob("*.json"))) and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    site.server.step_s = 0
    assert process.returncode == 130, err
    problem = json.loads(out)
    assert problem["code"] == "interrupted"
    assert f"cosmos3 queue resume {site.out}" in problem["remedy"]
    assert not (site.out / "index.json").exists()
    assert run("queue", "status", str(site.out), "--json") == 0
    found = said(capsys)
    assert (found["state"], found["parts"]["running"]) == ("running", 0), "a worker that ends gives its parts back"
    assert run("queue", "pause", str(site.out)) == 0
    assert "paused" in capsys.readouterr().out
    assert run("queue", "resume", str(site.out), "--no-work", "--json") == 0
    assert said(capsys)["wanted"] == "running"
    assert run("queue", "resume", str(site.out), "--json") == 0, "with the services that it was begun with"
    assert said(capsys) == audit(site.out)
    assert set(site.server.generated.values()) == {1}
    assert len(site.server.generated) == 200
