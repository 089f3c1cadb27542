"""What a failed attempt means for the part, its service and the queue."""

from __future__ import annotations

import pytest

from cosmos3_serve.errors import (
    Conflict,
    ContractViolation,
    Cosmos3Error,
    Cosmos3RayServeError,
    Incomplete,
    IntegrityError,
    LimitExceeded,
    NotReady,
    QueueFull,
    Refusal,
    StorageFailure,
    Unauthorized,
    Unreachable,
    UsageError,
    ValidationFailed,
)
from cosmos3_serve.queue.attempts import Meaning, meaning_of


@pytest.mark.parametrize(
    ("error", "first", "last"),
    [
        (Incomplete("x", code="samples_failed"), Meaning.AGAIN, Meaning.PARTIAL),
        (Cosmos3RayServeError("x", code="samples_failed"), Meaning.PARTIAL, Meaning.PARTIAL),
        (Unreachable("x"), Meaning.ELSEWHERE, Meaning.ELSEWHERE),
        (Incomplete("x", code="unreachable"), Meaning.ELSEWHERE, Meaning.ELSEWHERE),
        (NotReady("x"), Meaning.ELSEWHERE, Meaning.ELSEWHERE),
        (QueueFull("x"), Meaning.ELSEWHERE, Meaning.ELSEWHERE),
        (Unauthorized("x"), Meaning.REFUSED, Meaning.REFUSED),
        (Refusal("x", code="revision_mismatch"), Meaning.REFUSED, Meaning.REFUSED),
        (LimitExceeded("x", code="batch_too_large"), Meaning.REFUSED, Meaning.REFUSED),
        (ValidationFailed("x"), Meaning.GIVE_UP, Meaning.GIVE_UP),
        (Conflict("x", code="publication_exists"), Meaning.GIVE_UP, Meaning.GIVE_UP),
        (Conflict("x", code="run_in_progress"), Meaning.LATER, Meaning.LATER),
        (UsageError("x", code="no_token"), Meaning.STOP, Meaning.STOP),
        (StorageFailure("x", code="storage_unavailable"), Meaning.LATER, Meaning.LATER),
        (Incomplete("x", code="storage_unavailable"), Meaning.LATER, Meaning.LATER),
        (StorageFailure("x", code="storage_denied"), Meaning.STOP, Meaning.STOP),
        (StorageFailure("x"), Meaning.AGAIN, Meaning.STOP),
        (Incomplete("x", code="deadline_exceeded"), Meaning.AGAIN, Meaning.STOP),
        (IntegrityError("x"), Meaning.AGAIN, Meaning.GIVE_UP),
        (ContractViolation("x"), Meaning.AGAIN, Meaning.GIVE_UP),
    ],
    ids=lambda value: f"{type(value).__name__}-{value.stable_code}" if isinstance(value, Cosmos3Error) else value.value,
)
def test_meaning(error: Cosmos3Error, first: Meaning, last: Meaning) -> None:
    assert meaning_of(error, attempts=1, most=3, partial=False) is first
    assert meaning_of(error, attempts=3, most=3, partial=False) is last


def test_nothing_is_published_partially_twice() -> None:
    for kind in (Incomplete, Cosmos3RayServeError):
        error = kind("x", code="samples_failed")
        assert meaning_of(error, attempts=1, most=3, partial=True) is Meaning.GIVE_UP
