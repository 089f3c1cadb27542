"""Bounded retries: only passing faults, exponential backoff with full jitter, one deadline over all attempts."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from cosmos3_serve.errors import StorageFailure

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to insist.

    Args:
        attempts: tries in all, the first included.
        base_s, cap_s: the n-th wait (from 1) is uniform in 0..min(cap_s, base_s * 2**(n-1)), so the first in 0..base_s.
        deadline_s: seconds after which no further try starts and a running one is cut; None for streamed bodies.
        connect_timeout_s: seconds to reach the server.
        read_timeout_s: seconds without one byte of an answer (an upload part counts as silence).
    """

    attempts: int = 6
    base_s: float = 0.1
    cap_s: float = 5.0
    deadline_s: float = 120.0
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0

    def wait_s(self, failures: int, draw: Callable[[], float] = random.random) -> float:
        """Seconds to wait after the `failures`-th failure (from 1)."""
        return draw() * min(self.cap_s, self.base_s * 2.0 ** min(failures - 1, 30))


@dataclass(slots=True)
class Attempts:
    """The running count of one operation."""

    policy: RetryPolicy
    failures: int = 0
    started: float = field(default_factory=time.monotonic)

    def remaining_s(self) -> float:
        return self.policy.deadline_s - (time.monotonic() - self.started)

    def progressed(self) -> None:
        """Bytes arrived: a long transfer may fail often, as long as each try moves it on."""
        self.failures, self.started = 0, time.monotonic()

    async def failed(self, failure: Exception) -> None:
        """Wait before the next attempt, or raise `failure` if there must be none."""
        self.failures += 1
        if not (isinstance(failure, StorageFailure) and failure.retryable) or self.failures >= self.policy.attempts:
            raise failure
        wait = self.policy.wait_s(self.failures)
        if wait >= self.remaining_s():
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
            async with asyncio.timeout(max(0.001, attempts.remaining_s())):
                return await call(attempts.failures)
        except TimeoutError:
            raise StorageFailure(
                f"object storage did not answer within {policy.deadline_s:g} s", code="storage_timeout"
            ) from None
        except StorageFailure as error:
            failure = error
        await attempts.failed(failure)
