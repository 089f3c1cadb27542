"""`ray-batch` and `ray-health` as a user calls them: output, exit codes, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.baseline_server import BaselineServer
from support.ledger_server import LedgerFaults, LedgerServer

from cosmos3_serve.cli import main
from cosmos3_serve.contract.wire import DIFFUSERS_REVISION, FRAMEWORK_REVISION

SAMPLES = [{"name": "a", "model_mode": "reasoner", "prompt": "p"}]


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPA_COSMOS3_RAY_TOKEN", "support-token")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("NPA_COSMOS3_RAY_ENDPOINT", raising=False)
    (tmp_path / "batch.json").write_text(json.dumps(SAMPLES))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LedgerServer]:
    with LedgerServer(tmp_path / "server", faults=LedgerFaults()) as made:
        yield made


def run(*argv: str) -> int:
    return main.run(main.build(), "cosmos3", argv)


def arguments(tmp_path: Path, *more: str) -> list[str]:
    return ["ray-batch", "--input-path", str(tmp_path / "batch.json"), "--output-path", str(tmp_path / "out"), *more]


def test_the_manifest_is_printed_sorted(
    server: LedgerServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPA_COSMOS3_RAY_ENDPOINT", server.endpoint)
    assert run(*arguments(tmp_path, "--endpoint", "", "--run-id", "r1")) == 0
    out, err = capsys.readouterr()
    manifest = json.loads(out)
    assert out == json.dumps(manifest, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    assert (manifest["run_id"], manifest["status"]) == ("r1", "completed")
    assert f"request {manifest['request_id']}" in err  # known before the POST, so that a killed run can be found
    assert "--resume" in err


def test_quiet_and_json_leave_one_object(
    server: LedgerServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments(tmp_path, "--endpoint", server.endpoint, "--quiet", "--json")) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["status"] == "completed"
    assert err == ""


@pytest.mark.parametrize(
    ("more", "exit_code", "code"),
    [
        (["--endpoint", ""], 2, "no_endpoint"),
        (["--endpoint", "http://127.0.0.1:1", "--token-env", "NOPE"], 2, "no_token"),
        (["--endpoint", "http://127.0.0.1:1", "--timeout", "0"], 2, "usage"),
        (["--endpoint", "http://127.0.0.1:1", "--resume"], 2, "no_such_run"),
        (["--endpoint", "http://127.0.0.1:1", "--timeout", "30"], 4, "unreachable"),
    ],
)
def test_failures_are_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], exit_code: int, code: str
) -> None:
    assert run(*arguments(tmp_path, *more, "--json")) == exit_code
    problem = json.loads(capsys.readouterr().out)
    assert (problem["code"], problem["exit_code"]) == (code, exit_code)
    assert problem["remedy"]


def test_the_expected_revision_comes_from_the_flag_then_the_environment(
    server: LedgerServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COSMOS3_EXPECTED_REVISION", DIFFUSERS_REVISION)
    assert run(*arguments(tmp_path, "--endpoint", server.endpoint, "--json")) == 3
    problem = json.loads(capsys.readouterr().out)
    assert problem["code"] == "revision_mismatch" and DIFFUSERS_REVISION in problem["detail"]
    assert "COSMOS3_EXPECTED_REVISION" in problem["remedy"]
    flag = ["--expected-revision", FRAMEWORK_REVISION]
    assert run(*arguments(tmp_path, "--endpoint", server.endpoint, "--json", *flag)) == 0


def test_input_and_output_are_required_unless_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ray-batch", "--endpoint", "http://127.0.0.1:1") == 2
    assert "--input-path" in capsys.readouterr().err


def test_dry_run_needs_no_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments(tmp_path, "--endpoint", "http://127.0.0.1:1", "--dry-run")) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "planned"


@pytest.mark.parametrize("as_json", [False, True])
def test_health(tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    more = ["--json"] if as_json else []
    with BaselineServer(tmp_path / "server") as server:
        assert run("ray-health", "--endpoint", server.endpoint, *more) == 0
        assert json.loads(capsys.readouterr().out)["status"] == "ready"
        server.faults.ready = False
        assert run("ray-health", "--endpoint", server.endpoint, *more) == 3
        out, err = capsys.readouterr()
        assert json.loads(out)["detail"] == "model deployment is not ready"
        assert "not ready" in err
        server.token = "other"
        assert run("ray-health", "--endpoint", server.endpoint, *more) == 3
    capsys.readouterr()
    assert run("ray-health", "--endpoint", server.endpoint, *more) == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_run_that_resumes(server: LedgerServer, tmp_path: Path, number: signal.Signals) -> None:
    server.steps, server.step_s = 8, 1.0  # it cannot end before the signal
    command = [sys.executable, "-m", "cosmos3_serve.cli.main", *arguments(tmp_path, "--endpoint", server.endpoint)]
    environ: dict[str, Any] = {**os.environ}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stderr is not None
        assert "if this is interrupted" in process.stderr.readline()
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    server.step_s = 0
    assert process.returncode == 130
    assert out == ""
    assert "continue with: cosmos3 ray-batch --resume --output-path" in err
    assert "Traceback" not in err
    resumed = subprocess.run(
        [*command[:3], "ray-batch", "--resume", "--output-path", str(tmp_path / "out")],
        capture_output=True, text=True, env=environ, timeout=60, check=False,
    )  # fmt: skip
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["status"] == "completed"
    assert set(server.generated.values()) == {1}
