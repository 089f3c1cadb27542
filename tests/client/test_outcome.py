"""What each kind of failure leaves in the journal, and what the user is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from cosmos3_serve.client.journal import Journal, Run
from cosmos3_serve.client.journals import Journals
from cosmos3_serve.client.outcome import interrupted, resume_command, settle
from cosmos3_serve.errors import (
    Conflict,
    ContractViolation,
    Cosmos3Error,
    Cosmos3RayServeError,
    Incomplete,
    IntegrityError,
    LimitExceeded,
    NotFound,
    QueueFull,
    StorageFailure,
    Unauthorized,
    Unreachable,
    ValidationFailed,
)

RESUME = "cosmos3 ray-batch --resume --output-path /out"


@pytest.fixture
def journals(tmp_path: Path) -> Journals:
    made = Journals(tmp_path)
    made.prepare()
    return made


def journal(journals: Journals, *, ledger: bool = True, state: str = "prepared", response: bool = False) -> Journal:
    run = Run(
        run_id="", request_id="req-1", endpoint="http://svc", input_path="b.json", output_path="/out",
        expected_revision="rev", ledger=ledger, created_at=1.0,
    )  # fmt: skip
    made = journals.create(run, b"{}")
    if response:
        made.keep_response(b"{}")
    made.save(state=state)
    return made


LOST = Unreachable("cut", sent=True)
TOO_BIG = LimitExceeded("big", code="spool_too_small")
REFUSED = Unreachable("refused", sent=False)


@pytest.mark.parametrize(
    ("error", "options", "first", "kind", "left"),
    [
        # nothing was accepted: forgotten
        (ValidationFailed("bad"), {}, True, ValidationFailed, None),
        (QueueFull("full"), {}, True, QueueFull, None),
        (REFUSED, {}, True, Unreachable, None),
        # the same answers on resume prove nothing about the first POST
        (QueueFull("full"), {}, False, QueueFull, "prepared"),
        (REFUSED, {}, False, Incomplete, "prepared"),
        # it may have been accepted
        (LOST, {}, True, Incomplete, "prepared"),
        (LOST, {"ledger": False}, True, Cosmos3RayServeError, "failed"),
        (Incomplete("late", code="deadline_exceeded"), {"ledger": False}, True, Cosmos3RayServeError, "failed"),
        # accepted: whatever breaks on the way can be continued
        (LOST, {"state": "submitted"}, True, Incomplete, "submitted"),
        (Unauthorized("no"), {"state": "submitted"}, True, Unauthorized, "submitted"),
        (StorageFailure("down"), {"state": "ended", "response": True}, True, Incomplete, "ended"),
        # but only what a flag names is wrong input by then
        (NotFound("gone"), {"state": "submitted"}, True, Incomplete, "submitted"),
        (Conflict("busy"), {"state": "ended", "response": True}, True, Incomplete, "ended"),
        (
            LimitExceeded("big", code="spool_too_small"),
            {"state": "ended", "response": True},
            True,
            LimitExceeded,
            "ended",
        ),
        (StorageFailure("down"), {"state": "ended", "response": True, "ledger": False}, True, Incomplete, "ended"),
        # the outcome itself is wrong: kept as failed
        (ContractViolation("lie"), {"state": "ended", "response": True}, True, ContractViolation, "failed"),
        (IntegrityError("other"), {"state": "ended", "response": True}, True, IntegrityError, "failed"),
        (Incomplete("some", code="samples_failed"), {"state": "ended", "response": True}, True, Incomplete, "failed"),
    ],
)
def test_settling(
    journals: Journals, error: Cosmos3Error, options: dict[str, bool], first: bool, kind: type, left: str | None
) -> None:
    made = journal(journals, **options)  # type: ignore[arg-type]
    raised = settle(error, made, RESUME, first=first)
    assert type(raised) is kind
    assert (raised.detail, raised.stable_code) == (error.detail, error.stable_code)
    kept = journals.find("/out")
    assert (kept.run.state if kept else None) == left
    if kept is not None:
        asks_again = options.get("ledger", True) or options.get("response", False)
        assert (RESUME in raised.remedy) is asks_again
        assert asks_again or "req-1" in raised.remedy
    if left == "failed":
        assert kept is not None and kept.run.failure is not None
        assert kept.run.failure["code"] == error.stable_code
        assert kept.run.failure["retryable"] is isinstance(error, Incomplete)


def test_a_place_that_is_lost_is_left_with_one_command(journals: Journals) -> None:
    made = journal(journals, state="ended", response=True)
    for error in (Conflict("taken", code="publication_exists"), IntegrityError("other", code="output_occupied")):
        raised = settle(error, made, RESUME, first=True, elsewhere="cosmos3 MOVE")
        assert type(raised) is type(error) and raised.remedy == "publish it at another place with: cosmos3 MOVE"
        assert made.run.state == "ended", "it can be continued there"


def test_interruption(journals: Journals) -> None:
    assert "before anything was submitted" in interrupted(None, RESUME).detail
    made = journal(journals)
    assert RESUME in interrupted(made, RESUME).remedy
    made.save(state="submitted")
    assert f"cosmos3 batch cancel req-1 --endpoint {made.run.endpoint}" in interrupted(made, RESUME).remedy
    made.remove()
    made = journal(journals, ledger=False)
    assert "req-1" in interrupted(made, RESUME).remedy
    assert made.run.state == "failed"


def test_the_resume_command_can_be_pasted() -> None:
    plain = resume_command("s3://b/out/", journal_dir=None, token_env="NPA_COSMOS3_RAY_TOKEN")
    assert plain == "cosmos3 ray-batch --resume --output-path s3://b/out/"
    full = resume_command("/my out", journal_dir=Path("/j"), token_env="MINE")
    assert full == "cosmos3 ray-batch --resume --output-path '/my out' --token-env MINE --journal-dir /j"
