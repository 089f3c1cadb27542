"""Delivery: from a sample to an engine's job, and from an engine's answer to the record of what came of the sample.

Hashing runs in threads of its own, few, so that it takes neither the loop nor the ledger's threads.
"""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import structlog
from pydantic import ValidationError

from cosmos3_serve.contract.inputs import replace_inputs
from cosmos3_serve.contract.jsontext import JsonProblem, check_json
from cosmos3_serve.contract.records import SampleState, SampleWave
from cosmos3_serve.contract.wire import is_safe_name
from cosmos3_serve.errors import SampleCode, SampleError
from cosmos3_serve.generator.engines.job import EngineJob, EngineResult
from cosmos3_serve.generator.guardrails.record import merged
from cosmos3_serve.generator.ledger.batch import Record, sample_failed, sample_state
from cosmos3_serve.generator.ledger.outcomes import public_outputs
from cosmos3_serve.generator.ports import Clock, Observer
from cosmos3_serve.generator.queue.admission import Work
from cosmos3_serve.generator.queue.hashing import verify
from cosmos3_serve.generator.queue.runner import Outcome

log = structlog.get_logger(__name__)


def job_of(work: Work, output_root: Path) -> EngineJob:
    """The job of a sample whose inputs, if any, are staged: absolute paths, an integer seed."""
    directory = str(output_root / work.request_id / work.name)
    args = {**work.resolved.model_dump(mode="json"), "output_dir": directory, "seed": work.seed}
    if work.staged is not None:
        args = replace_inputs(args, work.staged.files)
    return EngineJob(request_id=work.request_id, name=work.name, output_dir=directory, args=args)


class Delivery:
    """Args: `threads` hash at once."""

    def __init__(self, output_root: Path, clock: Clock, observer: Observer, *, threads: int = 2) -> None:
        self._root = output_root
        self._clock = clock
        self._observer = observer
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="hash")
        self._waves_seen: dict[str, None] = {}

    async def record(self, work: Work, outcome: Outcome, *, queue_s: float) -> Record:
        """What the journal says of a sample that came back from the engine. Never raises but for cancellation."""
        result = outcome.result
        about: dict[str, Any] = {"timings": self._timings(work, result, queue_s)}
        if result is not None:
            about |= self._told(result)
        if work.checks is not None:
            about["guardrails"] = merged(work.checks, about.get("guardrails", {}))
        if outcome.error is not None:
            return self._failed(work, outcome.error, about)
        started = self._clock.monotonic()
        try:
            outputs, artifacts = await asyncio.get_running_loop().run_in_executor(
                self._pool, self._verified, work, result
            )
        except SampleError as error:
            return self._failed(work, error, about)
        except Exception as error:
            log.error("verification_broke", exc_info=error)
            broken = SampleError(SampleCode.OUTPUT_INVALID, f"the output can't be read ({type(error).__name__})")
            return self._failed(work, broken, about)
        about["timings"]["hash"] = self._clock.monotonic() - started
        for phase, seconds in about["timings"].items():
            self._observer.phase(phase, seconds)
        self._observer.bytes("generated", sum(artifact["bytes"] for artifact in artifacts))
        return sample_state(
            work.index, SampleState.SUCCEEDED, self._clock.now(), outputs=outputs, artifacts=artifacts, **about
        )

    async def close(self) -> None:
        await asyncio.to_thread(self._pool.shutdown)

    def _verified(self, work: Work, result: EngineResult | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        outputs = result.outputs if result and result.outputs is not None else {}
        checked, artifacts = verify(self._root, work.request_id, work.resolved, work.seed, outputs)
        staged = work.staged.files if work.staged else {}
        given = {local: uri for path, local in staged.items() if (uri := _value_at(work.asked, path)) is not None}
        public = public_outputs(
            checked, directory=f"{work.request_id}/{work.name}", output_root=str(self._root), given=given
        )
        return public, artifacts

    def _failed(self, work: Work, error: SampleError, about: dict[str, Any]) -> Record:
        return sample_failed(work.index, error.sample_code, error.detail, self._clock.now(), **about)

    def _timings(self, work: Work, result: EngineResult | None, queue_s: float) -> dict[str, float]:
        """Phase name to seconds; what an engine says is kept only where it is a time."""
        timings = {"queue": max(0.0, queue_s - (work.staging_s or 0.0) - work.check_s)}
        if work.staging_s is not None:
            timings["staging"] = work.staging_s
        if work.checks is not None:
            timings["guardrail"] = work.check_s
        phases = result.phases if result is not None else {}
        return timings | {name: s for name, s in phases.items() if is_safe_name(name) and math.isfinite(s) and s >= 0}

    def _told(self, result: EngineResult) -> dict[str, Any]:
        """The engine's own records (wave, compute, media, guardrails), each only if it is what it should be."""
        about: dict[str, Any] = {}
        try:
            wave = SampleWave.model_validate(result.wave.model_dump())
            check_json(wave.model_dump(), max_depth=3, max_nodes=100)
            about["wave"] = wave.model_dump(mode="json", exclude={"neighbours"})
            self._count(wave)
        except (ValidationError, JsonProblem):
            log.warning("wave_record_malformed")
        if result.compute is not None:
            try:
                compute = result.compute.model_dump(mode="json")
                check_json(compute, max_depth=3, max_nodes=100)
                about["compute"] = compute
            except JsonProblem:
                log.warning("compute_record_malformed")
        try:
            check_json(result.media, max_depth=4, max_nodes=1000)
            about |= {"media": result.media} if result.media else {}
        except JsonProblem:
            log.warning("media_record_malformed")
        try:
            check_json(result.guardrails, max_depth=8, max_nodes=1000)
            about["guardrails"] = result.guardrails
            self._count_guardrails(result.guardrails)
        except JsonProblem:
            log.warning("guardrail_record_malformed")
        return about

    def _count(self, wave: SampleWave) -> None:
        """Each coalesced batch and each inference call once, whichever of its samples comes first."""
        for kind, number, size in (
            ("c", wave.coalesced_id, wave.coalesced),
            ("i", wave.inference_id, wave.inference_batch),
        ):
            seen = kind + number
            if number and seen not in self._waves_seen:
                self._waves_seen[seen] = None
                (self._observer.coalesced if kind == "c" else self._observer.inference)(size)
        while len(self._waves_seen) > 1024:
            del self._waves_seen[next(iter(self._waves_seen))]

    def _count_guardrails(self, guardrails: dict[str, Any]) -> None:
        checks = guardrails.get("checks")
        for item in checks if isinstance(checks, list) else []:
            if isinstance(item, dict) and isinstance(item.get("check"), str) and isinstance(item.get("decision"), str):
                self._observer.guardrail(item["check"], item["decision"])


def _value_at(sample: Any, path: tuple[str | int, ...]) -> Any:
    for part in path:
        sample = sample[part]
    return sample
