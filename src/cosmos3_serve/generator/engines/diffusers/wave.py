"""The loop over one wave: samples denoise together, and no sample can harm another.

What goes through the matrix products together (a block) is decided by the packing. On CUDA it is the whole wave. On a
CPU it is the samples of one layout, once it was seen that this changes no bit of anybody (`together.py`).

A sample that is cancelled leaves before the next step. A step that fails for the wave (out of memory, or any other
error) is no verdict on anyone: caches are freed and each sample runs again alone, from its seed; only what fails alone
has failed.
"""

from __future__ import annotations

import gc
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from cosmos3_serve.errors import Cosmos3Error, SampleCode, SampleError
from cosmos3_serve.generator.engines.diffusers.network import Network
from cosmos3_serve.generator.engines.diffusers.replay import Replay
from cosmos3_serve.generator.engines.diffusers.run import Latents, Prefixes, Run
from cosmos3_serve.generator.engines.diffusers.together import Proven, apart, together
from cosmos3_serve.generator.engines.job import EngineJob, WaveRecord

log = logging.getLogger(__name__)

OnStep = Callable[[str, int, int], None]
IsCancelled = Callable[[str], bool]
Prepare = Callable[[EngineJob, Prefixes], Run]
Packing = Literal["wave", "proven", "sample"]


@dataclass
class Seat:
    """A job's place in the wave and what became of it: `latents` or `error`."""

    job: EngineJob
    wave: WaveRecord
    run: Run | None = None
    latents: Latents | None = None
    error: SampleError | None = None
    prepare_s: float = 0.0
    inference_s: float = 0.0

    @property
    def open(self) -> bool:
        return self.run is not None and self.error is None and self.latents is None


class Wave:
    """Args:
    packing: `wave`: one block; `proven`: a block for those of one layout where `proven` has seen that it changes no
        bit; `sample`: a block for each sample.
    """

    def __init__(
        self,
        network: Network,
        prepare: Prepare,
        packing: Packing,
        on_step: OnStep,
        is_cancelled: IsCancelled,
        replay: Replay | None = None,
        proven: Proven | None = None,
    ) -> None:
        self._network = network
        self._prepare_run = prepare
        self._packing = packing
        self._on_step = on_step
        self._is_cancelled = is_cancelled
        self._prefixes = Prefixes(network)
        self._replay = replay
        self._proven = proven or Proven(network)

    def denoise(self, jobs: Sequence[EngineJob]) -> list[Seat]:
        """One seat per job, in order, each with latents or an error."""
        seats = [Seat(job, WaveRecord()) for job in jobs]
        for seat in seats:
            self._prepare(seat)
        ready = [seat for seat in seats if seat.open]
        self._seal(ready)
        again = self._drive(ready)
        for seat in again:
            self._alone(seat)
        self._prefixes.clear()
        return seats

    def _prepare(self, seat: Seat, *, last_chance: bool = False) -> None:
        if self._is_cancelled(seat.job.key):
            seat.error = SampleError(SampleCode.CANCELLED, "cancelled before its first step")
            return
        began = time.perf_counter()
        try:
            seat.run = self._prepare_run(seat.job, self._prefixes)
        except Exception as error:
            seat.error = self._verdict(error, "preparing")
        if seat.error is not None and seat.error.sample_code is SampleCode.OUT_OF_MEMORY and not last_chance:
            self._free()
            seat.error = None
            self._prepare(seat, last_chance=True)
        seat.prepare_s = time.perf_counter() - began

    def _seal(self, seats: list[Seat]) -> None:
        """Record who goes through the network together."""
        name = uuid.uuid4().hex[:12]
        mixed = len({seat.run.shape for seat in seats if seat.run}) > 1
        for slot, seat in enumerate(seats):
            seat.wave = WaveRecord(
                inference_id=name, inference_batch=len(seats), slot=slot, mixed_shapes=mixed, coalesced=len(seats)
            )

    def _alone(self, seat: Seat) -> None:
        """Run a sample by itself from its beginning: equal seeds, equal bytes, whatever went before."""
        seat.run = seat.error = None
        self._free()
        self._prepare(seat)
        if seat.open:
            self._seal([seat])
            self._drive([seat], last_chance=True)

    def _drive(self, seats: list[Seat], *, last_chance: bool = False) -> list[Seat]:
        """Step until every seat is settled; returns those to be run again alone."""
        again: list[Seat] = []
        began = time.perf_counter()
        active = list(seats)
        while active:
            for seat in active:
                if self._is_cancelled(seat.job.key):
                    seat.error = SampleError(SampleCode.CANCELLED, "cancelled between two steps")
                    seat.run = None
            active = [seat for seat in active if seat.open]
            if not active:
                break
            failure = self._step(active)
            if failure is not None:
                if last_chance or (len(active) == 1 and failure.sample_code is not SampleCode.OUT_OF_MEMORY):
                    for seat in active:
                        seat.error, seat.run = failure, None
                    break
                log.warning("a step of %d samples failed (%s); each runs again alone", len(active), failure.detail)
                for seat in active:
                    seat.run = None
                again += active
                break
            for seat in active:
                self._settle(seat, again, began, last_chance)
            active = [seat for seat in active if seat.open]
        return again

    def _step(self, active: list[Seat]) -> SampleError | None:
        """One step of all; on failure nothing of the step may be used."""
        try:
            strands = [seat.run.current.strands() for seat in active if seat.run]
            if self._packing == "wave":
                hidden = together(self._replay.forward if self._replay else self._network.forward, strands)
            elif self._packing == "proven":
                hidden = self._proven.forward(strands)
            else:
                hidden = apart(self._network.forward, strands)
            for seat, own_rows in zip(active, hidden, strict=True):
                assert seat.run is not None
                try:
                    seat.run.advance(own_rows)
                except Exception as error:  # between steps each is on its own already
                    seat.error = self._verdict(error, "stepping")
        except Exception as error:
            return self._verdict(error, "denoising")
        return None

    def _settle(self, seat: Seat, again: list[Seat], began: float, last_chance: bool) -> None:
        run = seat.run
        assert run is not None
        if seat.error is not None:
            seat.run = None
            if seat.error.sample_code is SampleCode.OUT_OF_MEMORY and not last_chance:
                seat.error = None
                again.append(seat)
            return
        self._on_step(seat.job.key, run.steps_done, run.total_steps)
        if run.done:
            seat.latents, seat.run = run.result(), None
            seat.inference_s = time.perf_counter() - began

    def _verdict(self, error: Exception, doing: str) -> SampleError:
        """The failure as a sample's error; the traceback goes to the log, never into a response."""
        if isinstance(error, SampleError):
            return error
        if is_out_of_memory(error):
            return SampleError(
                SampleCode.OUT_OF_MEMORY, f"out of memory while {doing}; try a smaller size or fewer frames"
            )
        log.error("unexpected failure while %s", doing, exc_info=error)
        detail = error.detail if isinstance(error, Cosmos3Error) else type(error).__name__
        return SampleError(SampleCode.ENGINE_FAILED, f"the engine failed while {doing} ({detail})")

    def _free(self) -> None:
        self._prefixes.clear()
        if self._replay:
            self._replay.forget()
        free_memory()


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA's error, Python's, and that of torch's CPU allocator, which is a plain RuntimeError."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)


def free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
