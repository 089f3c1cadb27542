"""Retention: which ended batches give up their files, and when even their names are forgotten.

Live batches are never touched. An expired batch keeps its name, so that its id still answers `expired` and is not
silently another batch's; the number of such names is bounded too, and the oldest become free again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass

import structlog

from cosmos3_serve.errors import NotReady
from cosmos3_serve.generator.ledger.batch import Summary
from cosmos3_serve.generator.ledger.ledger import Ledger
from cosmos3_serve.generator.ports import Clock

log = structlog.get_logger(__name__)
ROUND_S = 30.0


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Attributes:
    max_age_s: age after its end at which a batch expires.
    max_bytes: what the files of ended batches may take together.
    max_batches: ended batches kept with their files, whatever their size (each costs memory).
    max_names: expired batches remembered by name.
    """

    max_age_s: float
    max_bytes: int
    max_batches: int = 20_000
    max_names: int = 10_000


def to_expire(ended: Sequence[Summary], age: float, policy: RetentionPolicy) -> list[str]:
    """Ids of the batches to expire, oldest end first; `age` is what the ledger's own clock reads now."""
    kept = sorted((s for s in ended if s.expired_at is None), key=lambda s: s.age_at)
    size = sum(summary.bytes for summary in kept)
    count = len(kept)
    chosen = []
    for summary in kept:
        too_old = age - summary.age_at > policy.max_age_s
        if not too_old and size <= policy.max_bytes and count <= policy.max_batches:
            break
        chosen.append(summary.request_id)
        size -= summary.bytes
        count -= 1
    return chosen


def to_forget(ended: Sequence[Summary], policy: RetentionPolicy) -> list[str]:
    """Ids of expired batches whose names are given up, longest expired first."""
    expired = sorted(
        (s.expired_at, s.request_id) for s in ended if s.expired_at is not None
    )  # fmt: skip
    return [request_id for _, request_id in expired[: max(0, len(expired) - policy.max_names)]]


class Janitor:
    """Applies the policy, every `ROUND_S` seconds or when asked. `turn` holds one id against everybody else."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        policy: RetentionPolicy,
        turn: Callable[[str], AbstractAsyncContextManager[None]],
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._policy = policy
        self._turn = turn
        self._remembering: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """For ever; ends only by cancellation."""
        while True:
            await self._clock.sleep(ROUND_S)
            remembering = asyncio.create_task(self._remember())
            try:
                await self.clean()
            except Exception as error:
                log.error("retention_failed", exc_info=error)
            self._remembering = remembering  # kept from the garbage collector; a round is long for one write

    async def _remember(self) -> None:
        with suppress(NotReady):  # the reading before it is the better one of a disk that fails
            await self._ledger.tick()

    async def clean(self) -> None:
        for request_id in to_expire(self._ledger.ended(), self._ledger.age(), self._policy):
            async with self._turn(request_id):
                if self._ledger.live(request_id) is None:  # else it was reopened while we waited
                    await self._ledger.expire(request_id)
        for request_id in to_forget(self._ledger.ended(), self._policy):
            async with self._turn(request_id):
                await self._ledger.forget(request_id)
