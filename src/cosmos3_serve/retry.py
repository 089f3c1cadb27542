"""When a call is tried again: the one policy of storage, the batch client and the reasoner's client.

| outcome | tried again |
| --- | --- |
| no answer: refused, reset, cut, timed out | yes; what is not idempotent only if it was certainly not received |
| 408, 425, 429, 502, 503, 504 | yes |
| 500 | where the call only reads (S3: always; an own 500 of the service to a POST is its verdict) |
| S3 InternalError, ServiceUnavailable, SlowDown, RequestTimeout, Throttling… | yes |
| S3 409 ConditionalRequestConflict while the key is free, or the version unchanged | yes |
| 404 on an object that this process has just written | yes |
| any other 4xx, a wrong hash, a wrong certificate, denied credentials | no |

Waits grow exponentially with full jitter, are never shorter than the server's Retry-After, and never begun past the
deadline over all tries.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

PASSING_STATUSES = frozenset({408, 425, 429, 502, 503, 504})
PASSING_READ_STATUSES = PASSING_STATUSES | {500}
PASSING_S3_CODES = frozenset(
    {
        *("InternalError", "ServiceUnavailable", "SlowDown", "RequestTimeout", "Throttling", "ThrottlingException"),
        *("OperationAborted", "ConditionalRequestConflict"),
    }
)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to insist.

    Args:
        attempts: tries in all, the first included.
        base_s, cap_s: the n-th wait is uniform in 0..min(cap_s, base_s * 2**(n-1)).
        deadline_s: seconds after which no further try starts.
        statuses: HTTP answers that are worth another try.
        resend: whether it may be repeated after it was perhaps received. False only for what is not idempotent.
    """

    attempts: int = 6
    base_s: float = 0.1
    cap_s: float = 5.0
    deadline_s: float = math.inf
    statuses: frozenset[int] = PASSING_STATUSES
    resend: bool = True

    def wait_s(self, failures: int, draw: Callable[[], float] = random.random) -> float:
        """Seconds to wait after the `failures`-th failure (from 1)."""
        return draw() * min(self.cap_s, self.base_s * 2.0 ** min(failures - 1, 30))


ONCE = RetryPolicy(attempts=1)
FIRST_CONTACT = RetryPolicy(attempts=5, base_s=0.25, cap_s=10.0)
PATIENT = RetryPolicy(attempts=80, base_s=0.25, cap_s=10.0)  # minutes of outage: for a batch that was accepted
STORAGE = RetryPolicy(attempts=6, base_s=0.1, cap_s=5.0, deadline_s=120.0)


@dataclass(slots=True)
class Attempts:
    """The running count of one operation."""

    policy: RetryPolicy
    draw: Callable[[], float] = random.random
    clock: Callable[[], float] = time.monotonic
    failures: int = 0
    started: float = field(default=math.nan)

    def __post_init__(self) -> None:
        self.started = self.clock()

    def remaining_s(self) -> float:
        return self.policy.deadline_s - (self.clock() - self.started)

    def progressed(self) -> None:
        """Bytes arrived: a long transfer may fail often, as long as each try moves it on."""
        self.failures, self.started = 0, self.clock()

    def wait_s(self, retry_after_s: float | None = None) -> float | None:
        """Count a failure; seconds to wait before the next try, None when there must be none."""
        self.failures += 1
        if self.failures >= self.policy.attempts:
            return None
        wait = max(retry_after_s or 0.0, self.policy.wait_s(self.failures, self.draw))
        return wait if wait < self.remaining_s() else None


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of a Retry-After header, in either of its two forms; None where there is none that makes sense."""
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        then = parsedate_to_datetime(text)
    except ValueError:
        return None
    then = then if then.tzinfo else then.replace(tzinfo=UTC)
    return max(0.0, (then - datetime.now(UTC)).total_seconds())
