"""Runner: one wave against the engine, and what became of each of its samples.

Samples of a wave are handed over concurrently, so that `@serve.batch` coalesces them. A call that raises, or answers
something that is no result, is made once more, alone: so a broken neighbour or a replica that died costs the others
nothing but time. The same goes for an engine that failed, or ran out of memory, in company.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cosmos3_serve.errors import Cosmos3Error, EngineStalled, SampleCode, SampleError
from cosmos3_serve.generator.engines.job import EngineJob, EngineResult
from cosmos3_serve.generator.ledger.outcomes import shown
from cosmos3_serve.generator.ports import Clock, EnginePort

LOST = "the model's replica was replaced before it began this sample"


@dataclass(slots=True, eq=False)
class Flight:
    """A wave that is out.

    Attributes:
        keys: `sample_key` of its samples.
        aborted: set with the reason when nobody should wait any longer (watchdog, end of a drain).
        lost: set when the replica was replaced before it began the wave: its samples get their second attempt.
        first_s: seconds of the first attempt, once every sample answered it.
    """

    keys: tuple[str, ...]
    aborted: asyncio.Future[SampleError] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    departed_at: float = 0.0
    first_s: float | None = None

    def abort(self, reason: SampleError) -> None:
        if not self.aborted.done():
            self.aborted.set_result(reason)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one call came to: a result, or why there is none (a result may carry the reason); whether it was alone,
    and whether it was the second attempt."""

    job: EngineJob
    result: EngineResult | None
    error: SampleError | None
    alone: bool
    second: bool = False

    @property
    def clean(self) -> bool:
        return self.error is None and not self.second


class WaveRunner:
    def __init__(self, engine: EnginePort, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    async def run(
        self, jobs: Sequence[EngineJob], flight: Flight, *, unwanted: Callable[[EngineJob], bool]
    ) -> AsyncIterator[Outcome]:
        """Outcomes as they come, exactly one for each job. `unwanted` says which jobs need no second attempt."""
        again: list[tuple[EngineJob, SampleError]] = []
        started = self._clock.monotonic()
        async for outcome in self._calls(jobs, flight):
            if outcome.error is not None and self._second_chance(outcome, flight) and not unwanted(outcome.job):
                again.append((outcome.job, outcome.error))
            else:
                yield outcome
        flight.first_s = self._clock.monotonic() - started
        for job, error in again:
            if flight.aborted.done() or unwanted(job):
                reason = flight.aborted.result() if flight.aborted.done() else error
                yield Outcome(job, None, reason, alone=True, second=True)
            else:
                flight.lost.clear()
                async for outcome in self._calls([job], flight):
                    yield replace(outcome, second=True)

    @staticmethod
    def _second_chance(outcome: Outcome, flight: Flight) -> bool:
        if flight.aborted.done():
            return False
        code = outcome.error.sample_code if outcome.error else None
        if isinstance(outcome.error, _Broken):
            # What ran into the time limit alone would do so again.
            return not (outcome.alone and code is SampleCode.DEADLINE_EXCEEDED)
        return code in (SampleCode.ENGINE_FAILED, SampleCode.OUT_OF_MEMORY) and not outcome.alone

    async def _calls(self, jobs: Sequence[EngineJob], flight: Flight) -> AsyncIterator[Outcome]:
        calls: Mapping[asyncio.Future[EngineResult], EngineJob] = {
            asyncio.ensure_future(self._engine.generate(job)): job for job in jobs
        }
        pending: set[asyncio.Future[EngineResult]] = set(calls)
        lost = asyncio.ensure_future(flight.lost.wait())
        try:
            while pending and not flight.aborted.done() and not lost.done():
                either: list[asyncio.Future[Any]] = [*pending, flight.aborted, lost]
                done, _ = await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                for call in [call for call in calls if call in done]:
                    pending.discard(call)
                    result, error = _judged(calls[call], call)
                    alone = len(jobs) == 1 and (result is None or result.wave.coalesced <= 1)
                    yield Outcome(calls[call], result, error, alone)
            for call in [call for call in calls if call in pending]:
                error = flight.aborted.result() if flight.aborted.done() else _Broken(SampleCode.ENGINE_FAILED, LOST)
                yield Outcome(calls[call], None, error, alone=len(jobs) == 1)
        finally:
            lost.cancel()
            for call in pending:
                call.cancel()
                call.add_done_callback(_looked_at)


class _Broken(SampleError):
    """The call itself broke, which may be a neighbour's or the replica's fault: worth another try alone."""


def _judged(job: EngineJob, call: asyncio.Future[EngineResult]) -> tuple[EngineResult | None, SampleError | None]:
    if call.cancelled():
        return None, _Broken(SampleCode.ENGINE_FAILED, "the engine dropped the call")
    error = call.exception()
    if error is not None:
        return None, _typed(error)
    result = call.result()
    if not isinstance(result, EngineResult) or result.name != job.name:
        return None, _Broken(
            SampleCode.OUTPUT_INVALID, "the engine answered something that is not this sample's result"
        )
    if result.error is not None:
        return result, SampleError(result.error.code, shown(result.error.message))
    return result, None


def _typed(error: BaseException) -> SampleError:
    """The engine's exception as a sample's failure. Foreign texts are not shown: they may quote a neighbour."""
    if isinstance(error, SampleError):
        return SampleError(error.sample_code, shown(error.detail))
    if isinstance(error, EngineStalled):
        return _Broken(SampleCode.ENGINE_STALLED, shown(error.detail))
    if isinstance(error, TimeoutError):
        return _Broken(SampleCode.DEADLINE_EXCEEDED, "the engine did not finish within its time limit")
    if "OutOfMemory" in type(error).__name__:
        return _Broken(SampleCode.OUT_OF_MEMORY, "the engine ran out of memory")
    said = f": {shown(error.detail)}" if isinstance(error, Cosmos3Error) else ""
    return _Broken(SampleCode.ENGINE_FAILED, f"the engine failed ({type(error).__name__}){said}")


def _looked_at(call: asyncio.Future[EngineResult]) -> None:
    """Retrieve what an abandoned call came to, so that asyncio doesn't report it as lost."""
    if not call.cancelled():
        call.exception()
