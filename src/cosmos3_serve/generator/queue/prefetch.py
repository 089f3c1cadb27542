"""Prefetch: fetches the inputs of the samples that are next and has their texts checked, so that no wave waits for it.

At most `backlog` samples are fetched or checked at once, and as many have files on disk while they wait; of those
without files `CHECKED_AHEAD` times as many may wait checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from cosmos3_serve.contract.grouping import shape_key, wave_key
from cosmos3_serve.contract.profile import EngineProfile
from cosmos3_serve.contract.records import SampleState
from cosmos3_serve.errors import SampleCode, SampleError
from cosmos3_serve.generator.guardrails.gate import TextGate
from cosmos3_serve.generator.guardrails.record import merged
from cosmos3_serve.generator.ledger.batch import Record, sample_failed, sample_staged, sample_state
from cosmos3_serve.generator.ledger.writer import LedgerWriter
from cosmos3_serve.generator.ports import Clock
from cosmos3_serve.generator.queue.admission import Work, fold_staged
from cosmos3_serve.generator.queue.scheduler import WaveScheduler
from cosmos3_serve.generator.queue.staging import Stager

log = structlog.get_logger(__name__)
Key = tuple[str, int]
# Checked samples without files cost a few bytes each, and the next wave is chosen among them: with as few as may fetch
# at once, samples of many kinds in turn make waves of one.
CHECKED_AHEAD = 8


class Prefetch:
    """Args:
    gate: checks the texts; None where guardrails are off.
    end: ends a sample whose inputs can't be had, or whose texts may not pass.
    wake: told whenever a sample became ready or room was made.
    """

    def __init__(
        self,
        profile: EngineProfile,
        writer: LedgerWriter,
        scheduler: WaveScheduler,
        stager: Stager,
        clock: Clock,
        *,
        backlog: int,
        gate: TextGate | None = None,
        end: Callable[[Work, Record], Awaitable[None]],
        wake: Callable[[], None],
    ) -> None:
        self._profile = profile
        self._writer = writer
        self._scheduler = scheduler
        self._stager = stager
        self._clock = clock
        self._backlog = backlog
        self._gate = gate
        self._end = end
        self._wake = wake
        self._fetching: dict[Key, asyncio.Task[None]] = {}
        self._ahead: set[Key] = set()

    def go(self, works: dict[Key, Work]) -> None:
        """Begin with the next samples that need inputs or a check, as far as there is room."""
        at_once = self._backlog - len(self._fetching)
        waiting = self._backlog * CHECKED_AHEAD - len(self._ahead)
        files = self._backlog - sum(works[key].needs_inputs for key in self._ahead if key in works)
        if min(at_once, waiting) <= 0:
            return
        for ticket in self._scheduler.unready(len(self._fetching) + 2 * self._backlog):
            key = (ticket.batch, ticket.index)
            if key in self._ahead or (works[key].needs_inputs and files <= 0):
                continue
            if min(at_once, waiting) <= 0:
                return
            at_once, waiting, files = at_once - 1, waiting - 1, files - works[key].needs_inputs
            self._ahead.add(key)
            self._fetching[key] = asyncio.create_task(self._fetch(works[key]))

    def left(self, keys: Iterable[Key]) -> None:
        """Samples that no longer wait make room."""
        self._ahead.difference_update(keys)

    def fetching(self, request_id: str) -> list[Key]:
        return [key for key in self._fetching if key[0] == request_id]

    async def stop(self, key: Key) -> None:
        """Give up fetching for a sample, if it is still going on."""
        self._ahead.discard(key)
        task = self._fetching.pop(key, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def close(self) -> None:
        for key in list(self._fetching):
            await self.stop(key)

    @property
    def empty(self) -> bool:
        return not self._fetching and not self._ahead

    async def _fetch(self, work: Work) -> None:
        started = self._clock.monotonic()
        try:
            await self._writer.insist(work.request_id, sample_state(work.index, SampleState.STAGING, self._clock.now()))
            if work.needs_inputs:
                staged = await self._stager.stage(work.request_id, work.index)
                if staged.texts:
                    await asyncio.to_thread(fold_staged, work, staged.texts)
                work.staged, work.staging_s = staged, self._clock.monotonic() - started
            if self._gate is not None:
                verdict = await self._gate.check(work.asked, work.resolved)
                work.checks, work.check_s = verdict.records, verdict.seconds
                if verdict.refused is not None:
                    raise verdict.refused
            if work.staged is not None:
                record = sample_staged(work.index, work.staged.records, self._clock.now())
            else:
                record = sample_state(work.index, SampleState.QUEUED, self._clock.now())
            await self._writer.insist(work.request_id, record)
            resolved = work.resolved
            self._scheduler.make_ready(work.request_id, work.index, key=wave_key(resolved), shape=shape_key(resolved))
        except Exception as error:
            if not isinstance(error, SampleError):
                log.error("staging_broke", exc_info=error)
                error = SampleError(
                    SampleCode.STAGING_FAILED, f"the input could not be staged ({type(error).__name__})"
                )
            self._scheduler.withdraw(work.request_id, [work.index])
            about = {"guardrails": merged(work.checks, {})} if work.checks is not None else {}
            record = sample_failed(work.index, error.sample_code, error.detail, self._clock.now(), **about)
            await self._end(work, record)
        finally:
            self._fetching.pop(work.key, None)
            self._wake()
