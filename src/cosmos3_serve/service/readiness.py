"""Readiness: one truthful report made of independent checks, each with its reason."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

log = structlog.get_logger(__name__)

CHECK_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found; `reason` also says something when all is well, so that a report explains itself."""

    name: str
    ok: bool
    reason: str


T = TypeVar("T")
Verdict = tuple[bool, str]
Check = Callable[[], Verdict] | Callable[[], Awaitable[Verdict]]


class Readiness:
    """Asks every check. A check that raises or takes too long counts as failed: never ready by accident."""

    def __init__(self, timeout_s: float = CHECK_TIMEOUT_S) -> None:
        self._checks: dict[str, Check] = {}
        self._timeout_s = timeout_s

    def add(self, name: str, check: Check) -> None:
        self._checks[name] = check

    async def findings(self) -> list[Finding]:
        return list(await asyncio.gather(*(self._ask(name, check) for name, check in self._checks.items())))

    async def _ask(self, name: str, check: Check) -> Finding:
        try:
            async with asyncio.timeout(self._timeout_s):
                verdict = check()
                ok, reason = verdict if isinstance(verdict, tuple) else await verdict
        except TimeoutError:
            return Finding(name, False, f"no answer within {self._timeout_s:g} s")
        except Exception as error:
            log.warning("readiness_check_failed", check=name, exception=type(error).__name__)
            return Finding(name, False, f"the check itself failed ({type(error).__name__})")
        return Finding(name, bool(ok), reason)


class Remembered(Generic[T]):
    """An expensive answer, asked for at most every `ttl_s` seconds, by one caller at a time. Failures are not kept.

    Args:
        ttl_s: seconds, or how many an answer is worth: what is waited for may be looked at more often.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[T]],
        ttl_s: float | Callable[[T], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._ttl_s = ttl_s
        self._clock = clock
        self._lock = asyncio.Lock()
        self._last: tuple[float, T] | None = None

    async def __call__(self) -> T:
        async with self._lock:
            if self._last is None or self._clock() - self._last[0] >= self._worth_s(self._last[1]):
                self._last = None
                answer = await self._ask()
                self._last = (self._clock(), answer)
            return self._last[1]

    def _worth_s(self, answer: T) -> float:
        return self._ttl_s(answer) if callable(self._ttl_s) else self._ttl_s
