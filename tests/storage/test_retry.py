from __future__ import annotations

import asyncio
import pickle

import pytest

from cosmos3_serve.errors import NotFound, StorageFailure
from cosmos3_serve.retry import Attempts, RetryPolicy
from cosmos3_serve.storage.retry import after, retrying

PASSING = StorageFailure("busy", code="storage_unavailable")
QUICK = RetryPolicy(attempts=4, base_s=0, cap_s=0)


@pytest.mark.parametrize(
    "failure, tries",
    [(PASSING, 4), (StorageFailure("late", code="storage_timeout"), 4),
     (StorageFailure("no", code="storage_denied"), 1), (StorageFailure("no"), 1),
     (NotFound("none"), 1), (RuntimeError("bug"), 1)],
    ids=lambda value: getattr(value, "stable_code", str(value)),
)  # fmt: skip
async def test_only_passing_faults_are_tried_again(failure: Exception, tries: int) -> None:
    seen: list[int] = []

    async def call(failures: int) -> None:
        seen.append(failures)
        raise failure

    with pytest.raises(type(failure)) as caught:
        await retrying(QUICK, call)
    assert caught.value is failure
    assert seen == list(range(tries))


async def test_a_later_success_counts() -> None:
    async def call(failures: int) -> str:
        if failures < 3:
            raise PASSING
        return "done"

    assert await retrying(QUICK, call) == "done"


async def test_no_wait_goes_past_the_deadline() -> None:
    attempts = Attempts(RetryPolicy(attempts=100, base_s=1000, cap_s=1000, deadline_s=0.01))
    with pytest.raises(StorageFailure) as caught:
        async with asyncio.timeout(5):
            for _ in range(5):
                await after(PASSING, attempts)
    assert caught.value is PASSING


async def test_a_silent_try_is_cut_by_the_deadline() -> None:
    async def call(_: int) -> None:
        await asyncio.Event().wait()

    with pytest.raises(StorageFailure) as caught:
        await retrying(RetryPolicy(deadline_s=0.01), call)
    assert caught.value.stable_code == "storage_timeout"


async def test_progress_starts_the_count_anew() -> None:
    attempts = Attempts(QUICK)
    for _ in range(10):
        for _ in range(QUICK.attempts - 1):
            await after(PASSING, attempts)
        attempts.progressed()


def test_retryable_survives_a_process_border() -> None:
    again = pickle.loads(pickle.dumps(PASSING))
    assert again.retryable and again.stable_code == "storage_unavailable"
    assert not StorageFailure("no").retryable
