"""Whatever stops a run, `resume` ends it: nothing generated twice, nothing lost, and a clear word where it cannot."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.baseline_server import BaselineServer
from support.flaky import Fault, FlakyProxy
from support.ledger_server import LedgerFaults, LedgerServer
from support.s3 import LocalS3

from cosmos3_serve.client import follow, rerun
from cosmos3_serve.client.journals import Journals
from cosmos3_serve.client.submit import submit_batch
from cosmos3_serve.errors import (
    Conflict,
    ContractViolation,
    Cosmos3Error,
    Cosmos3RayServeError,
    ExitCode,
    Incomplete,
    IntegrityError,
    NotFound,
    Refusal,
    UsageError,
)

IMAGES = [{"name": name, "prompt": "p", "num_frames": 1, "resolution": "256"} for name in ("a", "b")]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LedgerServer]:
    monkeypatch.setattr(follow, "POLL_S", (0.02, 0.1))
    with LedgerServer(tmp_path / "server", faults=LedgerFaults()) as made:
        yield made


@pytest.fixture
def options(server: BaselineServer, tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "batch.json").write_text(json.dumps(IMAGES))
    return {
        "input_path": str(tmp_path / "batch.json"),
        "output_path": str(tmp_path / "out"),
        "endpoint": server.endpoint,
        "run_id": "run-1",
    }


def give_up_waiting(options: dict[str, Any]) -> None:
    """A run that was accepted and then left, as a deadline leaves it, whatever this machine's speed."""

    async def leave(self: follow.Follower) -> Any:
        raise Incomplete("left", code="deadline_exceeded")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Incomplete):
        patch.setattr(follow.Follower, "wait", leave)
        submit_batch(**options)


def resumed(options: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return submit_batch(**{**options, "endpoint": "", "input_path": "", "resume": True, **changes})


def test_a_passed_deadline_is_continued(server: LedgerServer, options: dict[str, Any], own_state: Path) -> None:
    server.step_s = 1.0  # in all much longer than the deadline, which itself is much longer than the way to the POST
    server.steps = 8
    with pytest.raises(Incomplete) as caught:
        submit_batch(**options, timeout=4)
    assert (caught.value.stable_code, caught.value.exit_code) == ("deadline_exceeded", ExitCode.INCOMPLETE)
    assert f"cosmos3 ray-batch --resume --output-path {options['output_path']}" in caught.value.remedy
    server.step_s = 0
    with pytest.raises(Conflict) as unfinished:
        submit_batch(**options)
    assert unfinished.value.stable_code == "unfinished_run"
    assert "--resume" in unfinished.value.remedy
    manifest = resumed(options)
    assert manifest["status"] == "completed"
    assert set(server.generated.values()) == {1}
    assert Journals(own_state).all() == []


def test_a_run_is_resumed_by_its_name(server: LedgerServer, options: dict[str, Any]) -> None:
    give_up_waiting(options)
    with pytest.raises(NotFound):
        resumed(options, output_path="", run_id="run-2")
    with pytest.raises(UsageError):
        resumed(options, output_path="", run_id="")
    assert resumed(options, output_path="")["run_id"] == "run-1"


def test_a_service_that_forgot_the_batch_gets_it_again(server: LedgerServer, options: dict[str, Any]) -> None:
    give_up_waiting(options)
    (forgotten,) = server.ledger.values()
    with forgotten.condition:
        forgotten.condition.wait_for(lambda: forgotten.ended, timeout=20)
    server.ledger.clear()
    manifest = resumed(options)
    assert server.batches == [manifest["request_id"]] * 2


@pytest.mark.parametrize("allow_partial", [False, True])
def test_the_same_run_asks_again_for_samples_that_may_run_again(
    server: LedgerServer, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, allow_partial: bool
) -> None:
    monkeypatch.setattr(rerun, "RERUN_WAIT_S", 0.01)
    server.faults.interrupted_once = {"b"}
    manifest = submit_batch(**options, allow_partial=allow_partial)
    assert manifest["status"] == "completed"
    assert sorted(server.generated.values()) == [1, 2], "only the interrupted sample ran twice"


def test_a_sample_that_is_interrupted_each_time_ends_the_run(
    server: LedgerServer, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rerun, "RERUN_WAIT_S", 0.01)
    server.faults.interrupted_always = {"b"}
    with pytest.raises(Incomplete) as caught:
        submit_batch(**options)
    assert (caught.value.stable_code, caught.value.exit_code) == ("samples_failed", ExitCode.INCOMPLETE)
    assert sorted(server.generated.values()) == [1, 1 + rerun.RERUNS]


def test_samples_that_may_run_again_do_and_the_others_do_not(
    server: LedgerServer, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rerun, "RERUNS", 0)
    server.faults.interrupted_once = {"b"}
    with pytest.raises(Incomplete) as caught:
        submit_batch(**options)
    assert caught.value.stable_code == "samples_failed"
    assert [(e.field, "interrupted" in e.message) for e in caught.value.errors] == [("samples[1]", True)]
    manifest = resumed(options)
    assert manifest["status"] == "completed"
    assert sorted(server.generated.values()) == [1, 2]


def test_what_failed_for_good_is_not_posted_again(server: LedgerServer, options: dict[str, Any]) -> None:
    server.faults.failing = {"a": "error"}
    for attempt in (submit_batch, resumed):
        with pytest.raises(Cosmos3RayServeError) as caught:
            attempt(**options) if attempt is submit_batch else attempt(options)
        assert (caught.value.stable_code, caught.value.exit_code) == ("samples_failed", ExitCode.SERVICE)
        assert "guardrail_blocked" in caught.value.errors[0].message
    assert len([1 for method, _, _ in server.log if method == "POST"]) == 1
    assert resumed(options, allow_partial=True)["status"] == "partial"


def test_a_new_run_after_a_failed_one_keeps_its_record(
    server: LedgerServer, options: dict[str, Any], own_state: Path
) -> None:
    server.faults.failing = {"a": "error"}
    with pytest.raises(Cosmos3RayServeError):
        submit_batch(**options)
    server.faults.failing = {}
    assert submit_batch(**options)["status"] == "completed"
    (kept,) = (own_state / "set-aside").iterdir()
    assert {"run.json", "request.json", "response.json"} <= {p.name for p in kept.iterdir()}


def test_an_unreachable_service_after_acceptance_is_incomplete(
    server: LedgerServer, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "PATIENT", follow.replace(follow.FIRST_CONTACT, attempts=2, base_s=0.01))
    monkeypatch.setattr("cosmos3_serve.client.delivery.transfer.PIECE_BYTES", 1000)
    server.faults.artifact_statuses = [401] * 50
    with pytest.raises(Refusal) as caught:
        submit_batch(**options)
    assert "then continue with: cosmos3 ray-batch --resume" in caught.value.remedy
    server.faults.artifact_statuses = []
    assert resumed(options)["status"] == "completed"
    assert len(server.batches) == 1


def test_storage_that_fails_is_incomplete_and_continued(
    s3: LocalS3, server: LedgerServer, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.create_bucket("away")
    down = True

    def plan(method: str, target: str, nth: int) -> Fault | None:
        return Fault.ERROR_500 if down and method == "PUT" and "vision" in target else None

    options["output_path"] = "s3://away/out/"
    with FlakyProxy(s3.endpoint, plan) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        with pytest.raises(Incomplete) as caught:
            submit_batch(**options)
        assert caught.value.stable_code.startswith("storage_")
        downloads = len([1 for _, path, _ in server.log if "artifacts" in path])
        down = False
        manifest = resumed(options)
    assert manifest["published_uri"] == "s3://away/out/"
    assert len([1 for _, path, _ in server.log if "artifacts" in path]) == downloads  # the spool kept them


def test_a_lost_journal_is_made_anew_from_the_claim(
    s3: LocalS3, server: LedgerServer, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, own_state: Path
) -> None:
    """Another machine, an empty disk: the claim at the output location says what was posted."""
    s3.create_bucket("adopt")
    options["output_path"] = "s3://adopt/out/"

    def plan(method: str, target: str, nth: int) -> Fault | None:
        return Fault.ERROR_500 if method == "PUT" and "vision" in target else None

    with FlakyProxy(s3.endpoint, plan) as proxy, monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", proxy.url)
        with pytest.raises(Incomplete):
            submit_batch(**options)
    shutil.rmtree(own_state)
    with pytest.raises(Conflict) as caught:
        submit_batch(**options)
    assert caught.value.stable_code == "publication_exists"
    manifest = resumed(options, endpoint=server.endpoint)
    assert (manifest["status"], server.batches) == ("completed", [manifest["request_id"]])
    assert set(server.generated.values()) == {1}


def test_a_place_taken_meanwhile_is_not_overwritten(server: LedgerServer, options: dict[str, Any]) -> None:
    give_up_waiting(options)
    out = Path(options["output_path"])
    (out / "request.json").write_text('{"request_id": "somebody-else"}')
    with pytest.raises(Conflict) as caught:
        resumed(options)
    assert caught.value.stable_code == "publication_exists"
    shutil.rmtree(tmp_state := Path(options["input_path"]).parent / "state")
    with pytest.raises(Conflict):
        resumed(options, endpoint=server.endpoint)
    assert tmp_state.exists()
    assert sorted(p.name for p in out.iterdir()) == [".cosmos3-claims", "request.json"]
    assert "somebody-else" in (out / "request.json").read_text()


def test_a_complete_publication_is_verified_and_returned_without_a_journal(
    server: LedgerServer, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = submit_batch(**options)
    monkeypatch.delenv("NPA_COSMOS3_RAY_TOKEN")
    requests = len(server.log)
    assert resumed(options) == manifest
    assert submit_batch(**options, resume=True) == manifest  # the same command with --resume
    assert len(server.log) == requests
    (tmp_path / "batch.json").write_text(json.dumps(IMAGES[:1]))
    with pytest.raises(Conflict) as caught:
        submit_batch(**options, resume=True)
    assert caught.value.stable_code == "input_differs"
    media = next(Path(options["output_path"]).rglob("a/vision.jpg"))
    media.write_bytes(media.read_bytes()[:-1] + b"\x00")
    with pytest.raises(IntegrityError) as damaged:
        resumed(options)
    assert damaged.value.stable_code == "publication_damaged"


@pytest.mark.parametrize(("method", "end"), [("POST", "/v1/batches"), ("GET", "/response")])
def test_a_gateways_page_in_place_of_the_response_is_not_the_last_word(
    server: LedgerServer, options: dict[str, Any], method: str, end: str
) -> None:
    """It came with status 200 and was kept as the run's response; the service has the true one."""

    def page(asked: str, target: str, nth: int) -> Fault | None:
        return Fault.ERROR_200 if asked == method and target.endswith(end) and not nth else None

    with FlakyProxy(server.endpoint, page) as proxy:
        with pytest.raises(ContractViolation):
            submit_batch(**options | {"endpoint": proxy.url})
        manifest = resumed(options)
    assert manifest["status"] == "completed"
    assert list(server.generated.values()) == [1, 1]


def test_nothing_to_resume_says_so(server: LedgerServer, options: dict[str, Any]) -> None:
    with pytest.raises(NotFound) as caught:
        resumed(options)
    assert caught.value.stable_code == "no_such_run"
    assert server.log == []


def test_a_baseline_service_cannot_be_asked_again_and_the_client_says_why(
    tmp_path: Path, options: dict[str, Any], own_state: Path
) -> None:
    with BaselineServer(tmp_path / "baseline") as baseline:
        baseline.faults.drop_posts = 1
        options["endpoint"] = baseline.endpoint
        with pytest.raises(Cosmos3Error) as lost:
            submit_batch(**options)
        (request_id,) = baseline.batches
        assert lost.value.exit_code == ExitCode.SERVICE
        assert request_id in lost.value.remedy  # the operator can find the output
        with pytest.raises(Refusal, match="keeps no batches") as caught:
            resumed(options)
        assert caught.value.stable_code == "resume_unsupported"
        assert len(baseline.batches) == 1  # not generated twice
        assert submit_batch(**options)["status"] == "completed"  # a new run is free to start
        assert resumed(options)["status"] == "completed"  # and once complete, it is reported
    assert len(list((own_state / "set-aside").iterdir())) == 1


def test_what_hangs_before_the_post_meets_the_same_deadline(
    server: LedgerServer, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr("cosmos3_serve.client.load.read_batch", hang)
    monkeypatch.setattr("cosmos3_serve.client.submit.SETTLE_S", 0.0)
    with pytest.raises(Incomplete, match=r"deadline of 0\.05 s") as caught:
        submit_batch(**options, timeout=0.05)
    assert caught.value.stable_code == "deadline_exceeded"
    assert server.log == []
