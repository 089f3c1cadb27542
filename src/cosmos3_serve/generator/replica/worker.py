"""EngineWorker: from one coalesced batch to one result per sample, whatever the engine does. No Ray here.

Two batchings, kept apart: what `@serve.batch` brought together (the coalesced batch) is split into what may go through
the network together (inference batches). One inference batch denoises at a time, in a thread of its own; decoding,
encoding and writing happen in another, and conditioning media are decoded in a third before their batch's turn, so that
the accelerator goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import time
import uuid
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from cosmos3_serve.contract.grouping import wave_key
from cosmos3_serve.contract.resolved import ResolvedSample
from cosmos3_serve.errors import SampleCode, SampleError
from cosmos3_serve.generator.engines.job import EngineError, EngineJob, EngineResult, WaveRecord

log = structlog.get_logger(__name__)

# After so many batches in a row in which nothing but the engine failed, the replica is not trusted any more.
MAX_FAILURES = 8


class Engine(Protocol):
    """What the worker needs of an engine.

    `load` reads a job's media ahead of its turn and must not fail for the sample's sake; `unload` frees what it left.
    `denoise` gives one item per job, in order; `finish` turns one into files.
    """

    def load(self, job: EngineJob) -> None: ...

    def unload(self, job: EngineJob) -> None: ...

    def denoise(
        self, jobs: Sequence[EngineJob], on_step: Callable[[str, int, int], None], is_cancelled: Callable[[str], bool]
    ) -> Sequence[Any]: ...

    def finish(self, item: Any) -> EngineResult: ...

    def check(self) -> None: ...


@dataclass(eq=False, slots=True)
class Call:
    """One caller's sample. Cancelled or not, it stays in its batch until the batch is over."""

    job: EngineJob
    cancelled: bool = False
    step: tuple[int, int] | None = None


class EngineWorker:
    """Args:
    max_num_seqs: most samples in one inference batch.
    """

    def __init__(self, engine: Engine, *, max_num_seqs: int) -> None:
        self._engine = engine
        self._max_num_seqs = max_num_seqs
        self._loading = ThreadPoolExecutor(1, thread_name_prefix="load")
        self._denoising = ThreadPoolExecutor(1, thread_name_prefix="denoise")
        self._finishing = ThreadPoolExecutor(1, thread_name_prefix="finish")
        self._calls: set[Call] = set()
        self._running = 0
        self._failures = 0

    # ---- one caller ------------------------------------------------------------------------------------------------

    def enter(self, job: EngineJob) -> Call:
        """A caller hands in a sample; `leave` once its call is over, however it ended."""
        call = Call(job)
        self._calls.add(call)
        return call

    def leave(self, call: Call, *, cancelled: bool) -> None:
        """The caller is gone. With `cancelled` the sample stops at its next step if it runs still."""
        call.cancelled = call.cancelled or cancelled
        self._calls.discard(call)

    # ---- control ---------------------------------------------------------------------------------------------------

    def progress(self) -> dict[str, tuple[int, int]]:
        return {call.job.key: call.step for call in self._calls if call.step is not None}

    def cancel(self, keys: Sequence[str]) -> None:
        wanted = set(keys)
        for call in self._calls:
            call.cancelled = call.cancelled or call.job.key in wanted

    async def check(self) -> None:
        """Raises when the engine is not to be trusted any more; while it works, progress is its sign of life."""
        if self._failures >= MAX_FAILURES:
            raise RuntimeError(f"the engine failed {self._failures} batches in a row")
        if not self._running:
            await asyncio.get_running_loop().run_in_executor(self._denoising, self._engine.check)

    # ---- one coalesced batch ---------------------------------------------------------------------------------------

    async def run(self, calls: Sequence[Call]) -> list[EngineResult]:
        """Exactly one result per call, in order. Never raises for the engine's sake."""
        coalesced_id = uuid.uuid4().hex[:12]
        arrived = time.perf_counter()
        self._running += 1
        groups = inference_batches(calls, self._max_num_seqs)
        loop = asyncio.get_running_loop()
        loads = [[loop.run_in_executor(self._loading, self._load, call) for call in group] for group in groups]
        try:
            finished: dict[Call, asyncio.Task[EngineResult]] = {}
            for group, reads in zip(groups, loads, strict=True):
                await asyncio.wait(reads)
                items = await self._denoise(group)
                for call in group:
                    self._engine.unload(call.job)
                for call, item in zip(group, items, strict=True):
                    finished[call] = asyncio.create_task(self._finish(call, item))
            results = [await finished[call] for call in calls]
        finally:
            self._running -= 1
            for call, read in zip(itertools.chain(*groups), itertools.chain(*loads), strict=True):
                # Not before it has ended: what it still brings would stay for ever.
                read.add_done_callback(functools.partial(lambda job, _: self._engine.unload(job), call.job))
        failed = [r.error is not None and r.error.code is SampleCode.ENGINE_FAILED for r in results]
        self._failures = self._failures + 1 if failed and all(failed) else 0
        log.info(
            "coalesced_batch",
            coalesced_id=coalesced_id,
            size=len(calls),
            inference=sorted({(r.wave.inference_id, r.wave.inference_batch) for r in results}),
            seconds=round(time.perf_counter() - arrived, 3),
            failed=sum(r.error is not None for r in results),
        )
        return [self._labelled(result, coalesced_id, len(calls)) for result in results]

    def _load(self, call: Call) -> None:
        """In the loading thread."""
        if call.cancelled:
            return
        try:
            self._engine.load(call.job)
        except Exception as error:
            log.warning("load_raised", exception=type(error).__name__)  # its turn will meet it again

    async def _denoise(self, group: Sequence[Call]) -> Sequence[Any]:
        by_key = {call.job.key: call for call in group}

        def on_step(key: str, step: int, total: int) -> None:
            if key in by_key:
                by_key[key].step = (step, total)

        def is_cancelled(key: str) -> bool:
            return key in by_key and by_key[key].cancelled

        jobs = [call.job for call in group]
        loop = asyncio.get_running_loop()
        try:
            items = await loop.run_in_executor(self._denoising, self._engine.denoise, jobs, on_step, is_cancelled)
        except Exception as error:
            log.error("denoise_raised", exc_info=error, size=len(jobs))
            return [_failure(error) for _ in group]
        if len(items) != len(jobs):
            log.error("denoise_miscounted", jobs=len(jobs), items=len(items))
            text = f"the engine answered {len(items)} results for {len(jobs)} samples"
            return [SampleError(SampleCode.ENGINE_FAILED, text) for _ in group]
        return items

    async def _finish(self, call: Call, item: Any) -> EngineResult:
        error: BaseException
        if isinstance(item, SampleError) and not hasattr(item, "job"):
            error = item  # ours, or an engine's bare verdict: nothing is left to write
        else:
            loop = asyncio.get_running_loop()
            try:
                result = await loop.run_in_executor(self._finishing, self._engine.finish, item)
                if isinstance(result, EngineResult) and result.name == call.job.name:
                    return result
                error = SampleError(SampleCode.OUTPUT_INVALID, "the engine finished another sample than this one")
            except Exception as raised:
                log.error("finish_raised", exc_info=raised)
                error = raised
        return EngineResult(name=call.job.name, error=EngineError.of(_failure(error)))

    @staticmethod
    def _labelled(result: EngineResult, coalesced_id: str, size: int) -> EngineResult:
        wave: WaveRecord = result.wave.model_copy(update={"coalesced_id": coalesced_id, "coalesced": size})
        return result.model_copy(update={"wave": wave})


def inference_batches(calls: Sequence[Call], limit: int) -> list[list[Call]]:
    """Split by what may share one inference call, in order of arrival, at most `limit` each.

    A sample whose arguments do not resolve gets a batch of its own: the engine refuses it, and only it.
    """
    open_groups: dict[Hashable, list[Call]] = {}
    batches: list[list[Call]] = []
    for call in calls:
        key = _key(call)
        group = open_groups.get(key)
        # One key twice in a batch would make progress and cancellation ambiguous.
        if group is None or len(group) >= limit or any(call.job.key == other.job.key for other in group):
            group = open_groups[key] = []
            batches.append(group)
        group.append(call)
    return batches


def _key(call: Call) -> Hashable:
    try:
        return wave_key(ResolvedSample.model_validate(call.job.args))
    except Exception:
        return call


def _failure(error: BaseException) -> SampleError:
    """The error as a sample's; foreign texts stay out of responses, they may quote a neighbour's prompt."""
    if isinstance(error, SampleError):
        return error
    if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__:
        return SampleError(SampleCode.OUT_OF_MEMORY, "the engine ran out of memory")
    return SampleError(SampleCode.ENGINE_FAILED, f"the engine failed ({type(error).__name__})")
