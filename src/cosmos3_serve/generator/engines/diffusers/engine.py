"""DiffusersEngine: one wave in, one result per sample out."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch

from cosmos3_serve.contract.wire import DIFFUSERS_BACKEND
from cosmos3_serve.errors import SampleCode, SampleError, StartRefused
from cosmos3_serve.generator.engines.ahead import Ahead
from cosmos3_serve.generator.engines.diffusers.codec import Codec
from cosmos3_serve.generator.engines.diffusers.compute import compute_record, thread_count, use_threads
from cosmos3_serve.generator.engines.diffusers.condition import Conditioner
from cosmos3_serve.generator.engines.diffusers.loader import (
    DeviceChoice,
    capabilities,
    diffusers_version,
    load_components,
    pick_device,
)
from cosmos3_serve.generator.engines.diffusers.network import Network
from cosmos3_serve.generator.engines.diffusers.outputs import (
    Denoised,
    FailedSample,
    Finisher,
    MediaRefused,
    open_directory,
)
from cosmos3_serve.generator.engines.diffusers.prompt import PromptEncoder
from cosmos3_serve.generator.engines.diffusers.replay import Replay
from cosmos3_serve.generator.engines.diffusers.run import (
    SUPPORTED_MODES,
    Prefixes,
    Run,
    Tools,
    media_of,
    prepare,
    read_sample,
)
from cosmos3_serve.generator.engines.diffusers.together import Proven
from cosmos3_serve.generator.engines.diffusers.wave import (
    IsCancelled,
    OnStep,
    Packing,
    Wave,
    free_memory,
    is_out_of_memory,
)
from cosmos3_serve.generator.engines.guard import MediaGuard, engine_record, make_guard
from cosmos3_serve.generator.engines.job import EngineInfo, EngineJob, EngineResult
from cosmos3_serve.service.memory import keep_freed_memory
from cosmos3_serve.weights.checkpoint import Checkpoint
from cosmos3_serve.weights.guardrail_assets import GuardrailFiles

log = logging.getLogger(__name__)


class DiffusersEngine:
    """Cosmos3's diffusers components under a batched denoise loop.

    `denoise` runs one wave and must be called from one thread at a time (a lock sees to it); `load` and `finish` may
    run in other threads meanwhile, so that the accelerator does not wait for JPEG, MP4 or the disk.

    Args:
        output_root: absolute directory that every job's `output_dir` lies below.
        max_num_seqs: most samples in one wave.
        guardrails: what was proved at the start, or None with `--no-guardrails`. Checks the media; the texts of a job
            were checked before it came here.
        packing: which samples share a matrix product; default: the wave on CUDA, on a CPU those of one layout where
            that was seen to change no bit (see `together`).
        threads: that torch computes with; default: one for a small model on a CPU, else as many as torch took. Another
            number may give other bytes.

    Raises:
        GuardrailsUnavailable: the media check cannot be loaded or does not work.
        CheckpointUnavailable, StartRefused: the checkpoint does not load, or the device is not there.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        output_root: Path,
        max_num_seqs: int = 4,
        device: DeviceChoice = "auto",
        guardrails: GuardrailFiles | None,
        packing: Packing | None = None,
        threads: int | None = None,
    ) -> None:
        # Before anything else is loaded: a check that does not work must not cost a GPU minute.
        self._guard: MediaGuard = make_guard(guardrails)
        _require_encoder()
        parts = load_components(checkpoint.path, pick_device(device))
        self._threads = threads or thread_count(parts.parameters, parts.device)
        use_threads(self._threads)
        if parts.device.type == "cpu":
            keep_freed_memory()  # a convolution takes and frees megabytes hundreds of times a sample
        self._guard.to(parts.device)
        self._checkpoint = checkpoint
        self._root = output_root.resolve()
        self._max_num_seqs = max_num_seqs
        self._packing: Packing = packing or ("wave" if parts.device.type == "cuda" else "proven")
        self._replays = parts.device.type == "cuda"
        self._network = Network(parts.transformer, parts.device, parts.temporal)
        self._proven = Proven(self._network)
        codec = Codec(parts.vae, parts.device)
        self._tools = Tools(parts, self._network, codec, Conditioner(parts, codec), PromptEncoder(parts.tokenizer))
        self._finisher = Finisher(codec, self._guard, self._root)
        self._ahead = Ahead()
        self._lock = threading.Lock()

    def info(self) -> EngineInfo:
        parts = self._tools.parts
        return EngineInfo(
            engine="diffusers",
            revision=f"diffusers-{diffusers_version()}",
            backend=DIFFUSERS_BACKEND,
            checkpoint=self._checkpoint.id,
            checkpoint_revision=self._checkpoint.revision,
            checkpoint_digest=self._checkpoint.digest,
            weights=self._checkpoint.weights,
            device=torch.cuda.get_device_name(parts.device) if parts.device.type == "cuda" else "cpu",
            dtype=str(parts.dtype).removeprefix("torch."),
            supported_modes=tuple(str(mode) for mode in SUPPORTED_MODES),
            max_num_seqs=self._max_num_seqs,
            capabilities=capabilities(parts.device),
            guardrails=engine_record(self._guard),
        )

    def load(self, job: EngineJob) -> None:
        """Decode the job's media before its turn; in another thread than `denoise`, one call at a time.

        What can't be decoded is found again, and told, when the sample's turn comes.
        """
        with suppress(SampleError):
            self._ahead.load(job, media_of(read_sample(job), self._tools.conditioner))

    def unload(self, job: EngineJob) -> None:
        """The job was denoised, or never will be."""
        self._ahead.drop(job)

    def denoise(
        self, jobs: Sequence[EngineJob], on_step: OnStep, is_cancelled: IsCancelled
    ) -> list[Denoised | FailedSample]:
        """Denoise the jobs as one inference batch; results in the order of the jobs.

        Args:
            on_step: called with (job key, steps done, steps in all) after each step; starts over if a sample is rerun.
            is_cancelled: asked with a job's key before each step.

        Raises:
            ValueError: no job, or more than `max_num_seqs`.
        """
        if not 0 < len(jobs) <= self._max_num_seqs:
            raise ValueError(f"{len(jobs)} jobs in one wave; 1 to {self._max_num_seqs} are allowed")
        use_threads(self._threads)  # each thread of this process has a number of its own
        compute = compute_record(self._tools.parts.device, self._tools.parts.precision)
        with self._lock, torch.inference_mode():
            replay = Replay(self._network, self._tools.codec.quiet) if self._replays else None
            prepared = partial(self._prepare, is_cancelled)
            wave = Wave(self._network, prepared, self._packing, on_step, is_cancelled, replay, self._proven)
            seats = wave.denoise(jobs)
        results: list[Denoised | FailedSample] = []
        for seat in seats:
            phases = {"prepare": seat.prepare_s, "inference": seat.inference_s}
            if seat.latents is not None:
                results.append(Denoised(seat.job, seat.latents, seat.wave, compute, phases))
            else:
                error = seat.error or SampleError(SampleCode.ENGINE_FAILED, "the sample got lost")
                results.append(FailedSample(error, seat.job, seat.wave, phases, self._guard.loaded))
        return results

    def finish(self, item: Denoised | FailedSample) -> EngineResult:
        """Decode, encode and write one sample. Never raises for the sample's sake: a failure is a result too."""
        if isinstance(item, FailedSample):
            return self._finisher.failure(item)
        use_threads(self._threads)
        for last_chance in (False, True):
            try:
                with torch.inference_mode():
                    return self._finisher.success(item)
            except SampleError as error:
                failure = error
            except Exception as error:
                failure = self._unexpected(error)
            if last_chance or failure.sample_code is not SampleCode.OUT_OF_MEMORY:
                break
            with self._tools.codec.quiet(wait=True):  # torch's cache must not be emptied while a step is recorded
                free_memory()
        checks = failure.checks if isinstance(failure, MediaRefused) else self._guard.loaded
        return self._finisher.failure(FailedSample(failure, item.job, item.wave, item.phases, checks))

    def check(self) -> None:
        """Raises whatever the device raises when it is no longer usable."""
        probe = torch.ones(2, device=self._tools.parts.device)
        if float((probe + 1).sum()) != 4.0:
            raise RuntimeError("the device computes wrong results")

    def _prepare(self, is_cancelled: IsCancelled, job: EngineJob, prefixes: Prefixes) -> Run:
        open_directory(job, self._root)
        return prepare(job, self._tools, prefixes, self._ahead.taker(job, partial(is_cancelled, job.key)))

    def _unexpected(self, error: Exception) -> SampleError:
        if is_out_of_memory(error):
            return SampleError(
                SampleCode.OUT_OF_MEMORY, "out of memory while decoding; try a smaller size or fewer frames"
            )
        log.error("unexpected failure while finishing a sample", exc_info=error)
        return SampleError(SampleCode.ENGINE_FAILED, f"the engine failed while finishing ({type(error).__name__})")


def _require_encoder() -> None:
    try:
        import imageio_ffmpeg

        imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError) as error:
        raise StartRefused(
            f"videos cannot be encoded: {error}",
            remedy="install the extra: pip install '.[diffusers]' in a checkout of cosmos3-serve",
        ) from None
