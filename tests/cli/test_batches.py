"""`cosmos3 batch list | show | logs | cancel` against a server with a ledger, and one without."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.baseline_server import BaselineServer
from support.ledger_server import LedgerFaults, LedgerServer

from cosmos3_serve.cli import main
from cosmos3_serve.client import batches

SAMPLES = [{"name": name, "model_mode": "reasoner", "prompt": "p"} for name in ("a", "b", "c")]


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPA_COSMOS3_RAY_TOKEN", "support-token")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LedgerServer]:
    with LedgerServer(tmp_path / "server", faults=LedgerFaults(), steps=2) as made:
        monkeypatch.setenv("NPA_COSMOS3_RAY_ENDPOINT", made.endpoint)
        yield made


def run(*argv: str) -> int:
    return main.run(main.build(), "cosmos3", ["batch", *argv])


def submit(server: LedgerServer, request_id: str) -> None:
    body = {"request_id": request_id, "model": "Cosmos3-Nano", "samples": SAMPLES}
    headers = {"Authorization": "Bearer support-token", "Prefer": "respond-async"}
    assert httpx.post(f"{server.endpoint}/v1/batches", json=body, headers=headers).status_code == 202


def ended(server: LedgerServer, request_id: str) -> None:
    until = time.monotonic() + 20
    while not (server.ledger[request_id].ended and server.ledger[request_id].response):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_every_page_of_the_list_is_read(
    server: LedgerServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "PAGE", 2)
    monkeypatch.setattr(batches.BatchLedger.pages, "__defaults__", (2,))
    for n in range(5):
        submit(server, f"req-{n}")
        ended(server, f"req-{n}")
    assert run("list", "--json") == 0
    found = json.loads(capsys.readouterr().out)["batches"]
    assert [row["request_id"] for row in found] == [f"req-{n}" for n in (4, 3, 2, 1, 0)]
    assert run("list", "--limit", "3") == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]] == [
        [f"req-{n}", "succeeded"] for n in (4, 3, 2)
    ]
    assert run("list", "--state", "running", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"batches": []}


def test_show_prints_each_sample_whole(server: LedgerServer, capsys: pytest.CaptureFixture[str]) -> None:
    submit(server, "req-1")
    ended(server, "req-1")
    server.ledger["req-1"].samples["b"] |= {"state": "failed", "code": "engine_failed", "message": "[red]" + "x" * 300}
    assert run("show", "req-1") == 0
    out = capsys.readouterr().out
    assert "req-1: succeeded" in out and "[red]" + "x" * 300 in out and "…" not in out
    assert run("show", "req-1", "--json") == 0
    assert [s["name"] for s in json.loads(capsys.readouterr().out)["samples"]] == ["a", "b", "c"]


@pytest.mark.parametrize("cuts", [0, 3])
def test_logs_tell_each_event_once_over_cut_streams(
    server: LedgerServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, cuts: int
) -> None:
    monkeypatch.setattr(batches, "POLL_S", 0.01)
    server.faults.cut_events = cuts
    submit(server, "req-1")
    assert run("logs", "req-1", "--json", "--steps") == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["id"] for event in events] == list(range(1, len(events) + 1))
    assert len(events) == len(server.ledger["req-1"].events) and events[-1]["type"] == "end"
    assert run("logs", "req-1") == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.endswith("a: succeeded") for line in lines) and not any("step" in line for line in lines)


def test_logs_without_follow_stop_at_the_present(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "POLL_S", 0.2)
    with LedgerServer(tmp_path / "server", faults=LedgerFaults(), steps=1, step_s=5) as server:
        submit(server, "req-1")
        assert run("logs", "req-1", "--no-follow", "--endpoint", server.endpoint) == 0
        assert "a: running" in capsys.readouterr().out
        assert not server.ledger["req-1"].ended


def test_cancel_stops_only_what_it_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with LedgerServer(tmp_path / "server", faults=LedgerFaults(), steps=4, step_s=0.05) as server:
        monkeypatch.setenv("NPA_COSMOS3_RAY_ENDPOINT", server.endpoint)
        submit(server, "req-1")
        submit(server, "req-2")
        assert run("cancel", "req-1", "--wait") == 0
        assert "req-1: cancelled" in capsys.readouterr().out
        ended(server, "req-2")
        assert server.ledger["req-2"].state == "succeeded"
        assert run("cancel", "req-2", "--json") == 0, "idempotent"
        assert json.loads(capsys.readouterr().out)["batches"][0]["state"] == "succeeded"


@pytest.mark.parametrize("command", ["show", "logs", "cancel"])
def test_an_unknown_batch_is_named(server: LedgerServer, capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert run(command, "req-none") == 2
    err = capsys.readouterr().err
    assert "code not_found" in err and "Traceback" not in err


@pytest.mark.parametrize("command", [("list",), ("show", "r"), ("logs", "r"), ("cancel", "r")])
def test_a_service_without_a_ledger_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    with BaselineServer(tmp_path / "server") as server:
        assert run(*command, "--endpoint", server.endpoint) == 2
    assert "code no_ledger" in capsys.readouterr().err
