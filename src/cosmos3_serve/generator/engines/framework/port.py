"""FrameworkEngine: upstream's deployment behind a Serve handle, as the coordinator's EnginePort.

Upstream's replica answers one call, `generate`, and knows neither health nor progress nor cancellation; what it lacks
is kept here, in the ingress. The canary, the probe and every wave come through the same door.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import structlog
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import RayServeException, RequestCancelledError

from cosmos3_serve.contract.grouping import shape_key, wave_key
from cosmos3_serve.contract.records import SampleCompute
from cosmos3_serve.contract.resolved import ResolvedSample
from cosmos3_serve.errors import EngineFailed, SampleCode, SampleError
from cosmos3_serve.generator.engines.framework.answers import Answers
from cosmos3_serve.generator.engines.framework.faults import fault_of, root_cause
from cosmos3_serve.generator.engines.framework.inputs import Inputs, clean_inputs
from cosmos3_serve.generator.engines.framework.overrides import override_fields
from cosmos3_serve.generator.engines.framework.turns import Turn, Turns
from cosmos3_serve.generator.engines.guard import upstream_checks
from cosmos3_serve.generator.engines.job import EngineInfo, EngineJob, EngineResult
from cosmos3_serve.generator.guardrails.record import guard_record
from cosmos3_serve.generator.ledger.files import PRIVATE

log = structlog.get_logger(__name__)

POLL_S = 1.0
INFO_S = 10.0
LOAD_S = 3600.0  # weights, compilation and all; a replica that takes longer is not coming
PROBE = {
    "name": "probe",
    "model_mode": "text2image",
    "num_frames": 1,
    "num_steps": 1,
    "seed": 0,
    "resolution": "256",
    "aspect_ratio": "1,1",
}
# Not worth a second try alone: the request itself cannot be had, or does not fit.
FINAL_ALONE = frozenset({SampleCode.GUARDRAIL_BLOCKED, SampleCode.INPUT_INVALID, SampleCode.OUT_OF_MEMORY})


class Replicas(Protocol):
    """What the engine needs of upstream's replica and its workers; all of it blocks."""

    def serving(self) -> bool:
        """Whether a replica runs. Upstream's constructor returns when the weights are loaded."""

    def name(self) -> str:
        """Of the living replica; every replica has another. Empty while there is none."""

    def devices(self) -> list[dict[str, str]]:
        """Devices that its workers may use, as `system.accelerators` has them; none on a CPU. Raises EngineFailed while
        the workers cannot be found."""

    def kill(self) -> int:
        """Kill replicas and their workers; how many replicas. Serve starts a new one."""


class FrameworkEngine:
    """Args:
    handle: of upstream's deployment.
    info: what the service says of this engine, but its devices: they are the replica's.
    admit: refuses compute capabilities that are no target; raises StartRefused.
    guarded: upstream's own guardrails are on.
    limit: calls in one turn: no more than coalesce, nor than share an inference call.
    make_overrides: upstream's `OmniSampleOverrides` from fields; may block, raises pydantic's ValidationError.
    on_replaced: told after a replica was killed to be replaced.
    """

    def __init__(
        self,
        handle: Any,
        replicas: Replicas,
        info: EngineInfo,
        *,
        output_root: Path,
        guarded: bool,
        limit: int,
        make_overrides: Callable[[Mapping[str, Any]], Any],
        admit: Callable[[Collection[str]], object] = lambda _: None,
        on_replaced: Callable[[], None] = lambda: None,
    ) -> None:
        self._handle = handle
        self._replicas = replicas
        self._info = info
        self._root = output_root
        self._guarded = guarded
        self._make_overrides = make_overrides
        self._admit = admit
        self._on_replaced = on_replaced
        self._turns = Turns(limit)
        self._answers = Answers()
        self._replacement: asyncio.Task[None] | None = None
        self._answered_at = time.monotonic()
        self._loaded_at = float("-inf")

    # ---- what can be seen

    @property
    def replacing(self) -> bool:
        """A replica was killed and its successor has not loaded yet."""
        return self._replacement is not None and not self._replacement.done()

    @property
    def busy_s(self) -> float | None:
        """How long the present batch has been with upstream; None when there is none. Loading does not count."""
        age = self._turns.age_s
        return None if age is None else min(age, time.monotonic() - self._loaded_at)

    @property
    def idle_s(self) -> float:
        """Seconds since upstream last answered."""
        return time.monotonic() - self._answered_at

    # ---- the coordinator's port

    async def loading(self) -> bool:
        return not await asyncio.to_thread(self._replicas.serving)

    async def info(self) -> EngineInfo:
        """What runs, on the devices that the replica has (upstream's replica knows neither info nor our targets).

        Raises:
            EngineFailed: `replica_lost`: no replica runs within ten seconds.
            StartRefused: `unsupported_gpu`.
        """
        deadline = time.monotonic() + INFO_S
        while self.replacing or not await asyncio.to_thread(self._replicas.serving):
            if time.monotonic() > deadline:
                raise EngineFailed("no replica of the framework runs", code="replica_lost")
            await asyncio.sleep(POLL_S)
        if self._info.capabilities is None:
            devices = await asyncio.to_thread(self._replicas.devices)
            capabilities = tuple(sorted({device["compute_capability"] for device in devices}))
            self._admit(capabilities)
            named = ", ".join(dict.fromkeys(device["name"] for device in devices))
            self._info = self._info.model_copy(update={"capabilities": capabilities, "device": named or "cpu"})
        return self._info

    async def generate(self, job: EngineJob) -> EngineResult:
        """One sample. Calls that may share an inference call coalesce upstream; others wait for their turn.

        Raises:
            SampleError: the sample itself is at fault, and it was alone.
            TimeoutError: upstream gave its batch up.
            EngineFailed: anything else; in company the fault may be a neighbour's.
        """
        clean = clean_inputs(job)
        inputs = await asyncio.to_thread(clean.__enter__)
        try:
            return await self._generated(job, inputs)
        finally:
            await asyncio.shield(asyncio.to_thread(clean.__exit__, None, None, None))

    async def _generated(self, job: EngineJob, inputs: Inputs) -> EngineResult:
        sample = ResolvedSample.model_validate(job.args)
        overrides = await self._overrides(override_fields(inputs.args, job.output_dir))
        async with self._turns.enter(wave_key(sample), shape_key(sample)) as (turn, seat):
            await self._loaded()
            started = time.monotonic()
            outputs = await self._ask(overrides, turn)
            seconds = time.monotonic() - started
            wave = await self._answers.wave(turn, seat)
        # The texts were checked before the job came here; this is what upstream checks by itself.
        record = guard_record(self._guarded, upstream_checks(self._guarded, modality=sample.modality))
        # Upstream does not tell its phases apart: this one holds denoising, decoding, encoding and writing.
        return EngineResult(
            name=job.name,
            outputs=inputs.named(outputs),
            wave=wave,
            media=inputs.media,
            compute=SampleCompute(device=self._info.device, dtype=self._info.dtype),
            phases={"inference": seconds},
            guardrails=record,
        )

    async def progress(self) -> dict[str, tuple[int, int]]:
        return {}

    async def cancel(self, keys: list[str]) -> None:
        """Upstream cannot stop a running batch: it finishes, and the ledger says so."""

    async def replace(self) -> None:
        """Kill replica and workers, and wait until the next one has loaded."""
        await asyncio.shield(self._start_replacement("it made no progress"))

    # ---- the canary's, and the supervisor's

    async def incarnation(self) -> str:
        """Another one for every replica that there ever was. Raises EngineFailed while there is none."""
        name = "" if self.replacing else await asyncio.to_thread(self._replicas.name)
        if not name:
            raise EngineFailed("no replica of the framework runs", code="replica_lost")
        return name

    async def read_probe(self, name: str) -> str:
        """Text of a file below the output root, as upstream's worker reads it: it takes its prompt from there."""
        return await self.probe(prompt_path=str(self._root / name))

    async def probe(self, **prompt: str) -> str:
        """One step of the smallest picture, alone, through everything; returns the prompt that upstream used."""
        directory = self._root / PRIVATE / f"probe-{uuid4().hex[:16]}"
        overrides = await self._overrides({**PROBE, "output_dir": str(directory), **prompt})
        try:
            async with self._turns.enter(object()) as (turn, _):
                await self._loaded()
                outputs = await self._ask(overrides, turn)
        finally:
            await asyncio.to_thread(shutil.rmtree, directory, True)
        return str(outputs["args"].get("prompt", ""))

    # ---- inside

    async def _overrides(self, fields: Mapping[str, Any]) -> Any:
        try:
            return await asyncio.to_thread(self._make_overrides, fields)
        except ValueError as error:
            fault = fault_of(error)
            raise SampleError(SampleCode.INPUT_INVALID, fault.message) from None

    async def _ask(self, overrides: Any, turn: Turn) -> dict[str, Any]:
        """Upstream's SampleOutputs as JSON; its exceptions as ours."""
        try:
            result = await self._handle.generate.remote(overrides)
            self._answered_at = time.monotonic()
        except RayTaskError as error:
            raise self._typed(error, turn) from None
        except RequestCancelledError:
            raise EngineFailed("the framework's replica dropped the call", code="replica_lost") from None
        except (RayActorError, RayError, RayServeException) as error:
            # The replica itself, not a worker below it: Serve sees that and starts another.
            raise EngineFailed(
                f"the framework's replica was lost ({type(error).__name__})", code="replica_lost"
            ) from None
        except (ValueError, RuntimeError, TimeoutError, OSError) as error:
            raise self._typed(error, turn) from None
        outputs: dict[str, Any] = result.model_dump(mode="json")
        return outputs

    def _typed(self, error: BaseException, turn: Turn) -> Exception:
        fault = fault_of(error)
        company = len(turn.shapes) > 1
        cause = type(root_cause(error)).__name__
        log.error("framework_raised", exception=cause, code=fault.code.value, fatal=fault.fatal, company=company)
        if fault.fatal:
            self._start_replacement(cause)
        if fault.code is SampleCode.DEADLINE_EXCEEDED:
            return TimeoutError(fault.message)
        if fault.code in FINAL_ALONE and not company:
            return SampleError(fault.code, fault.message)
        return EngineFailed(fault.message)

    async def _loaded(self) -> None:
        """Wait while the replica is being replaced. Raises EngineFailed when no other comes."""
        while self.replacing and self._replacement is not None:
            await asyncio.shield(self._replacement)

    def _start_replacement(self, reason: str) -> asyncio.Task[None]:
        if self._replacement is None or self._replacement.done():
            self._replacement = asyncio.create_task(self._replace(reason))
            self._replacement.add_done_callback(_seen)
        return self._replacement

    async def _replace(self, reason: str) -> None:
        killed = await asyncio.to_thread(self._replicas.kill)
        log.warning("engine_replaced", replicas=killed, reason=reason)
        self._on_replaced()
        deadline = time.monotonic() + LOAD_S
        while not await asyncio.to_thread(self._replicas.serving):
            if time.monotonic() > deadline:
                raise EngineFailed("the framework's replica did not come back", code="replica_lost")
            await asyncio.sleep(POLL_S)
        self._answered_at = self._loaded_at = time.monotonic()


def _seen(task: asyncio.Task[None]) -> None:
    """Retrieve what a replacement came to, so that asyncio does not report it as lost."""
    if not task.cancelled() and task.exception() is not None:
        log.error("engine_not_back", exc_info=task.exception())
