"""From latents to files: decode, check, encode, write, and say what was written.

Files and names as upstream has them. Paths that leave the engine are relative to the output root; no absolute server
path is written into any file.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cosmos3_serve.contract import wire
from cosmos3_serve.contract.modes import HINTS
from cosmos3_serve.contract.records import SampleCompute
from cosmos3_serve.errors import SampleCode, SampleError
from cosmos3_serve.generator.engines.diffusers.codec import Codec, to_frames
from cosmos3_serve.generator.engines.diffusers.run import Latents, check_finite, transfer_chunk
from cosmos3_serve.generator.engines.encode import write_jpeg, write_mp4, write_text
from cosmos3_serve.generator.engines.guard import MediaGuard
from cosmos3_serve.generator.engines.inputs import Frames
from cosmos3_serve.generator.engines.job import EngineError, EngineJob, EngineResult, WaveRecord
from cosmos3_serve.generator.guardrails.record import CheckRecord, guard_record

log = logging.getLogger(__name__)


@dataclass
class Denoised:
    """A sample whose latents are final; `DiffusersEngine.finish` makes files of it."""

    job: EngineJob
    latents: Latents
    wave: WaveRecord
    compute: SampleCompute
    phases: dict[str, float] = field(default_factory=dict)


class FailedSample(SampleError):
    """A sample without a result, with what is known of it; `DiffusersEngine.finish` takes it too."""

    def __init__(
        self,
        error: SampleError,
        job: EngineJob,
        wave: WaveRecord,
        phases: dict[str, float],
        checks: Sequence[CheckRecord],
    ) -> None:
        super().__init__(error.sample_code, error.detail)
        self.job = job
        self.wave = wave
        self.phases = phases
        self.checks = tuple(checks)

    def __reduce__(self) -> tuple[Any, ...]:
        error = SampleError(self.sample_code, self.detail)
        return FailedSample, (error, self.job, self.wave, self.phases, self.checks)


def public_args(job: EngineJob, root: Path) -> dict[str, Any]:
    """The sample's args as they may be shown: every server path relative to the output root, or its bare name."""

    def shown(path: str) -> str:
        p = Path(path)
        if not p.is_absolute():
            return path
        return p.relative_to(root).as_posix() if p.is_relative_to(root) else p.name

    args = dict(job.args)
    for name in ("output_dir", "vision_path", "sound_path", "action_path"):
        if isinstance(args.get(name), str):
            args[name] = shown(args[name])
    for name in HINTS:
        hint = args.get(name)
        if isinstance(hint, dict) and isinstance(hint.get("control_path"), str):
            args[name] = {**hint, "control_path": shown(hint["control_path"])}
    return args


def open_directory(job: EngineJob, root: Path) -> Path:
    """The sample's directory with `sample_args.json` in it, written before any work starts, as upstream does.

    Raises:
        SampleError: `engine_failed`: the directory lies outside the output root or cannot be written.
    """
    directory = Path(job.output_dir)
    if not directory.is_absolute() or not directory.resolve().is_relative_to(root.resolve()):
        raise SampleError(SampleCode.ENGINE_FAILED, "the sample's directory lies outside the output root")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_text(directory / wire.SAMPLE_ARGS, json.dumps(public_args(job, root), indent=2) + "\n")
    except OSError as error:
        raise SampleError(SampleCode.ENGINE_FAILED, f"the output root cannot be written: {error.strerror}") from None
    return directory


class MediaRefused(SampleError):
    """The media may not be delivered; `checks` says which check came to what."""

    def __init__(self, code: SampleCode, detail: str, checks: Sequence[CheckRecord]) -> None:
        super().__init__(code, detail)
        self.checks = tuple(checks)

    def __reduce__(self) -> tuple[Any, ...]:
        return MediaRefused, (self.sample_code, self.detail, self.checks)


class Finisher:
    def __init__(self, codec: Codec, guard: MediaGuard, root: Path) -> None:
        self._codec = codec
        self._guard = guard
        self._root = root

    def success(self, done: Denoised) -> EngineResult:
        """
        Raises:
            SampleError: `output_invalid`, `guardrail_blocked`, `guardrail_failed`, or `engine_failed` on disk errors.
        """
        began = time.perf_counter()
        frames = self._decode(done.latents)
        self._check_count(done.latents, frames)
        decoded = time.perf_counter()
        frames, checks = self._checked(frames)
        checked = time.perf_counter()
        directory = Path(done.job.output_dir)
        try:
            files = self._write(directory, done, frames)
            outputs: dict[str, Any] = {
                "args": public_args(done.job, self._root), "status": "success", "message": None, "stack_trace": None,
                "outputs": [{"content": self._content(done.latents), "files": files}],
            }  # fmt: skip
            write_text(directory / wire.SAMPLE_OUTPUTS, json.dumps(outputs, indent=2) + "\n")
        except OSError as error:
            raise SampleError(
                SampleCode.ENGINE_FAILED, f"the result cannot be written: {error.strerror or type(error).__name__}"
            ) from None
        phases = {"decode": decoded - began, "encode": time.perf_counter() - checked}
        if self._guard.configured:
            phases["media_check"] = checked - decoded
        return EngineResult(
            name=done.job.name,
            outputs=outputs,
            wave=done.wave,
            compute=done.compute,
            media=done.latents.media,
            phases={**done.phases, **phases},
            guardrails=guard_record(self._guard.configured, checks),
        )

    def failure(self, failed: FailedSample) -> EngineResult:
        directory = Path(failed.job.output_dir)
        record: dict[str, Any] = {
            "args": public_args(failed.job, self._root), "status": "error", "message": failed.detail,
            "stack_trace": None, "outputs": [],
        }  # fmt: skip
        try:
            if directory.is_dir():
                write_text(directory / wire.SAMPLE_OUTPUTS, json.dumps(record, indent=2) + "\n")
        except OSError:
            pass  # the result says it all; the file is a convenience
        return EngineResult(
            name=failed.job.name,
            error=EngineError.of(failed),
            wave=failed.wave,
            phases=failed.phases,
            guardrails=guard_record(self._guard.configured, failed.checks),
        )

    def _decode(self, latents: Latents) -> Frames:
        check_finite(latents.latents)
        if latents.action is not None:
            check_finite(latents.action)
        pixels = self._codec.decode(latents.latents)
        transfer = latents.transfer
        if transfer is None:
            frames: Frames = to_frames(pixels)
            return frames
        chunks = [*latents.chunks, transfer_chunk(pixels, len(latents.chunks), transfer)]
        return transfer.present(np.concatenate(chunks)[: transfer.total])

    def _check_count(self, latents: Latents, frames: Frames) -> None:
        expected = latents.transfer.total if latents.transfer else latents.sample.frames
        if len(frames) != expected:
            raise SampleError(SampleCode.OUTPUT_INVALID, f"{len(frames)} frames were made instead of {expected}")

    def _checked(self, frames: Frames) -> tuple[Frames, Sequence[CheckRecord]]:
        try:
            frames, checks = self._guard.check_media(frames)
            if self._guard.configured and all(check.decision in ("not_run", "upstream") for check in checks):
                raise ValueError("no check decided")
        except Exception as error:  # whatever broke, nothing was checked: fail closed
            log.error("the media check failed", exc_info=error)
            failed = [CheckRecord(c.check, "failed", c.checker, c.revision) for c in self._guard.loaded if c.checker]
            raise MediaRefused(
                SampleCode.GUARDRAIL_FAILED, f"the result could not be checked ({type(error).__name__})", failed
            ) from None
        if any(check.decision in ("blocked", "failed") for check in checks):
            blocked = any(check.decision == "blocked" for check in checks)
            raise MediaRefused(
                SampleCode.GUARDRAIL_BLOCKED if blocked else SampleCode.GUARDRAIL_FAILED,
                "the result was blocked by the guardrails" if blocked else "the result could not be checked",
                checks,
            )
        return frames, checks

    def _write(self, directory: Path, done: Denoised, frames: Frames) -> list[str]:
        sample, transfer = done.latents.sample, done.latents.transfer
        fps = transfer.fps if transfer else float(sample.fps)
        media = {wire.vision_file(len(frames)): frames}
        if transfer is not None:
            for hint, control in transfer.controls.items():
                media[wire.control_file(hint, transfer.total)] = control[: transfer.total]
        for name, content in media.items():
            if len(content) == 1:
                write_jpeg(directory / name, content[0], sample.image_save_quality)
            else:
                write_mp4(directory / name, content, fps, sample.video_save_quality)
        return [(directory / name).relative_to(self._root).as_posix() for name in media]

    def _content(self, latents: Latents) -> dict[str, Any]:
        if latents.action is None:
            return {}
        return {"action": latents.action[:, : latents.action_width].cpu().tolist()}
