"""Retries of storage calls: only passing faults, by the policy of `cosmos3_serve.retry`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from cosmos3_serve.errors import StorageFailure
from cosmos3_serve.retry import Attempts, RetryPolicy

T = TypeVar("T")


@asynccontextmanager
async def within(seconds: float) -> AsyncIterator[None]:
    """Cut what takes longer. Raises StorageFailure `storage_timeout`, which passes."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise StorageFailure(f"object storage did not answer within {seconds:.3g} s", code="storage_timeout") from None


async def after(failure: Exception, attempts: Attempts) -> None:
    """Wait before the next try, or raise `failure` if there must be none."""
    passing = isinstance(failure, StorageFailure) and failure.retryable
    wait = attempts.wait_s() if passing else None
    if wait is None:
        raise failure
    await asyncio.sleep(wait)


async def retrying(policy: RetryPolicy, call: Callable[[int], Awaitable[T]]) -> T:
    """Run `call(failures so far)` until it succeeds, fails for good, or the policy ends.

    `call` must raise typed errors. A try cut by the deadline is StorageFailure `storage_timeout`.
    """
    attempts = Attempts(policy)
    while True:
        failure: Exception
        try:
            async with within(max(0.001, attempts.remaining_s())):
                return await call(attempts.failures)
        except StorageFailure as error:
            failure = error
        await after(failure, attempts)
