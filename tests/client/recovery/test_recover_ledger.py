"""Recovery from a service's ledger: its exact response, its hashes, and a refusal for each thing that does not fit."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.baseline_server import BaselineServer
from support.ledger_server import LedgerFaults, LedgerServer
from support.natives import BATCH, edit, write_batch

from cosmos3_serve.client import follow
from cosmos3_serve.client.journals import Journals
from cosmos3_serve.client.recovery.recover import RecoverOrder, recover_batch
from cosmos3_serve.client.submit import submit_batch
from cosmos3_serve.errors import ContractViolation, Cosmos3Error, ExitCode, NotFound, Refusal
from cosmos3_serve.publication.audit import audit_place
from cosmos3_serve.storage.location import open_store

REQUEST = "req-9"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LedgerServer]:
    monkeypatch.setattr(follow, "POLL_S", (0.02, 0.1))
    with LedgerServer(tmp_path / "server", faults=LedgerFaults()) as made:
        yield made


@pytest.fixture
def posted(server: LedgerServer, tmp_path: Path) -> Callable[..., Any]:
    """The batch has run, no client got its answer; returns what recovers it."""
    batch = {"samples": BATCH, "request_id": REQUEST}
    (tmp_path / "batch.json").write_text(json.dumps(batch))
    headers = {"Authorization": f"Bearer {server.token}"}

    def run(*, first: bool = True, **options: Any) -> Any:
        if first:
            httpx.post(f"{server.endpoint}/v1/batches", json=batch, headers=headers, timeout=30).raise_for_status()
        given = {
            "input_path": str(tmp_path / "batch.json"),
            "endpoint": server.endpoint,
            "output_path": str(tmp_path / "out"),
        }
        return recover_batch(RecoverOrder(**(given | options)))

    return run


def refused(posted: Callable[..., Any], code: str, tmp_path: Path, **options: Any) -> Cosmos3Error:
    with pytest.raises(Cosmos3Error) as caught:
        posted(**options)
    assert caught.value.stable_code == code
    assert not (tmp_path / "out").exists()
    return caught.value


def test_the_exact_response_is_published(posted: Callable[..., Any], server: LedgerServer, tmp_path: Path) -> None:
    manifest = posted().manifest
    response = server.ledger[REQUEST].response
    assert (tmp_path / "out/response.json").read_bytes() == response
    assert manifest["response_sha256"] == hashlib.sha256(response).hexdigest()
    assert (manifest["status"], manifest["guardrails"], manifest["max_batch_size"]) == ("recovered", True, 4)
    recovery = manifest["recovery"]
    assert (recovery["source"], recovery["response"]) == ("service_ledger", "ledger")
    assert (recovery["location"], recovery["native_records"]) == (server.endpoint, False)
    assert {native["checked_against"] for native in recovery["natives"]} == {"ledger"}
    assert len([1 for method, _, _ in server.log if method == "POST"]) == 1, "nothing is posted by a recovery"
    assert asyncio.run(audit_place(open_store(str(tmp_path / "out")))).faults == []


def edited(*path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def edit(body: dict[str, Any]) -> None:
        place: Any = body
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = to

    return edit


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("native_wrong_seed", edited("outputs", 0, "args", "seed", to=5)),
        ("native_wrong_mode", edited("outputs", 0, "args", "model_mode", to="text2video")),
        ("native_wrong_args", edited("outputs", 0, "args", "prompt", to="another")),
        ("native_foreign_request", edited("outputs", 0, "args", "output_dir", to="/outputs/req-8/a")),
        ("native_outputs_invalid", edited("outputs", 0, "outputs", 0, "files", to=[])),
        ("native_media_altered", edited("artifacts", 0, "sha256", to="0" * 64)),
        ("contract_violation", edited("request_id", to="req-8")),
        ("contract_violation", edited("outputs", 0, "args", "name", to="z")),
        ("revision_mismatch", edited("framework_revision", to="0" * 40)),
    ],
)
def test_a_response_of_something_else_is_refused(
    posted: Callable[..., Any], server: LedgerServer, tmp_path: Path, code: str, change: Callable[[Any], None]
) -> None:
    server.faults.edit_response = change
    error = refused(posted, code, tmp_path, allow_partial=True)
    assert isinstance(error, ContractViolation if code in ("contract_violation", "revision_mismatch") else Refusal)


def test_truncated_media_are_refused(posted: Callable[..., Any], server: LedgerServer, tmp_path: Path) -> None:
    def cut(body: dict[str, Any]) -> None:
        path = server.root / body["artifacts"][1]["path"]
        path.write_bytes(path.read_bytes()[:900])
        body["artifacts"][1] |= {"bytes": 900, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}

    server.faults.edit_response = cut
    refused(posted, "native_media_invalid", tmp_path)


def test_a_failed_sample_needs_a_word(posted: Callable[..., Any], server: LedgerServer, tmp_path: Path) -> None:
    server.faults.failing = {"b": "error"}
    error = refused(posted, "native_batch_partial", tmp_path)
    assert "guardrail_blocked" in error.errors[0].message
    manifest = posted(first=False, allow_partial=True).manifest
    assert (manifest["status"], manifest["missing"]) == ("recovered", ["b"])
    assert [s["code"] for s in manifest["samples"]] == [None, "guardrail_blocked", None]


def test_what_the_ledger_cannot_give(posted: Callable[..., Any], server: LedgerServer, tmp_path: Path) -> None:
    assert isinstance(refused(posted, "native_outputs_missing", tmp_path, first=False), NotFound)
    posted()
    server.ledger[REQUEST].state = "running"
    refused_again = {"output_path": str(tmp_path / "more"), "first": False}
    for state, code in (("running", "batch_not_ended"), ("expired", "batch_expired")):
        server.ledger[REQUEST].state = state
        with pytest.raises(Refusal) as caught:
            posted(**refused_again)
        assert (caught.value.stable_code, caught.value.exit_code) == (code, ExitCode.REFUSED)


def test_a_service_without_a_ledger(posted: Callable[..., Any], tmp_path: Path) -> None:
    with BaselineServer(tmp_path / "baseline") as plain:
        error = refused(posted, "recover_unsupported", tmp_path, endpoint=plain.endpoint, first=False)
    assert "--source" in error.remedy


def test_a_response_that_was_damaged_on_the_way(server: LedgerServer, tmp_path: Path, own_state: Path) -> None:
    """The client got broken bytes and failed; the ledger still has the right ones, and the journal keeps the wrong."""
    (tmp_path / "batch.json").write_text(json.dumps(BATCH))
    fetch = follow.fetch_response

    async def damaged(service: Any, request_id: str) -> bytes:
        return (await fetch(service, request_id))[:-30]

    with pytest.MonkeyPatch.context() as patch, pytest.raises(ContractViolation):
        patch.setattr(follow, "fetch_response", damaged)
        submit_batch(
            input_path=str(tmp_path / "batch.json"), output_path=str(tmp_path / "out"), endpoint=server.endpoint
        )
    (journal,) = Journals(own_state).all()
    kept = journal.response
    order = RecoverOrder(request_id=journal.run.request_id, output_path=str(tmp_path / "out"))
    manifest = recover_batch(order).manifest  # endpoint and request from the journal
    assert manifest is not None
    attempt = manifest["recovery"]["first_attempt"]
    assert kept is not None and attempt["response_sha256"] == hashlib.sha256(kept).hexdigest()
    assert attempt["response_sha256"] != manifest["response_sha256"]
    assert (attempt["failure_code"], journal.response) == ("contract_violation", kept)


# ---- a copy of our output root that holds the ledger, too


@pytest.fixture
def copied(posted: Callable[..., Any], server: LedgerServer, tmp_path: Path) -> Callable[..., Any]:
    posted(dry_run=True)
    root = tmp_path / "copy"
    write_batch(root, request_id=REQUEST)
    for path in server.root.rglob("vision.*"):
        (root / path.relative_to(server.root)).write_bytes(path.read_bytes())
    ledger = root / ".cosmos3" / "ledger" / REQUEST
    ledger.mkdir(parents=True)
    (ledger / "response.json").write_bytes(server.ledger[REQUEST].response)
    return lambda **options: posted(first=False, source=str(root), **options)


def test_the_copied_ledger_gives_response_and_hashes(
    copied: Callable[..., Any], server: LedgerServer, tmp_path: Path
) -> None:
    manifest = copied().manifest
    assert (tmp_path / "out/response.json").read_bytes() == server.ledger[REQUEST].response
    checked = {n["path"]: n["checked_against"] for n in manifest["recovery"]["natives"]}
    assert checked[f"{REQUEST}/a/vision.jpg"] == "ledger"
    assert checked[f"{REQUEST}/a/sample_args.json"] == "nothing"
    assert manifest["max_batch_size"] == 4


def test_files_that_are_not_the_ledgers(copied: Callable[..., Any], tmp_path: Path) -> None:
    picture = tmp_path / "copy" / REQUEST / "a" / "vision.jpg"
    picture.write_bytes(picture.read_bytes() + b"\0")
    refused(copied, "native_media_altered", tmp_path)
    response = tmp_path / "copy" / ".cosmos3" / "ledger" / REQUEST / "response.json"
    edit(response, "request_id", to="other")
    report = copied(dry_run=True).report
    assert report["findings"][0]["code"] == "native_ledger_disagrees"
