"""A model replica whose engine does what the prompt says, so that real Ray and real Serve meet every kind of failure.

Words of a prompt: `raise` (the whole call breaks), `short` (one result too few), `bytes=N` (a file of that size, its
end a hole), `pace=S` (a step takes so many seconds, else `STEP_S`). Anything else is only written into the file. No
torch, no weights.
"""

from __future__ import annotations

import io
import json
import os
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from cosmos3_serve.contract.wire import DIFFUSERS_BACKEND, VISION_IMAGE
from cosmos3_serve.errors import SampleCode, SampleError
from cosmos3_serve.generator.engines.job import EngineInfo, EngineJob, EngineResult, WaveRecord
from cosmos3_serve.generator.replica.deployment import ModelReplica
from cosmos3_serve.generator.replica.worker import EngineWorker
from cosmos3_serve.service import logs
from cosmos3_serve.settings import GeneratorSettings
from cosmos3_serve.weights.checkpoint import Checkpoint

STEP_S = 0.05
RUNS = "runs.log"
CALLS = "calls.log"


@dataclass
class Item:
    job: EngineJob
    wave: WaveRecord


class ScriptedEngine:
    def __init__(self, root: Path, checkpoint: Checkpoint, limit: int) -> None:
        self._root, self._checkpoint, self._limit = root, checkpoint, limit

    def info(self) -> EngineInfo:
        return EngineInfo(
            engine="diffusers",
            revision="diffusers-scripted",
            backend=DIFFUSERS_BACKEND,
            checkpoint=self._checkpoint.id,
            checkpoint_revision=self._checkpoint.revision,
            checkpoint_digest=self._checkpoint.digest,
            weights="random",
            device="cpu",
            dtype="none",
            supported_modes=("text2image",),
            max_num_seqs=self._limit,
        )

    def load(self, job: EngineJob) -> None:
        """There is nothing to read."""

    def unload(self, job: EngineJob) -> None:
        """There is nothing to free."""

    def denoise(
        self, jobs: Sequence[EngineJob], on_step: Callable[[str, int, int], None], is_cancelled: Callable[[str], bool]
    ) -> list[Item | SampleError]:
        with (self._root.parent / CALLS).open("a") as calls:
            calls.write(" ".join(job.key for job in jobs) + "\n")
        words = {word for job in jobs for word in job.args["prompt"].split()}
        total = max(job.args["num_steps"] for job in jobs)
        pace = max([STEP_S, *(float(word.removeprefix("pace=")) for word in words if word.startswith("pace="))])
        for step in range(1, total + 1):
            time.sleep(pace)
            for job in jobs:
                on_step(job.key, step, total)
            if all(is_cancelled(job.key) for job in jobs):
                break
        if "raise" in words:
            raise RuntimeError(f"the engine broke over {jobs[0].args['prompt']}")
        number = uuid.uuid4().hex[:12]
        items: list[Item | SampleError] = [
            SampleError(SampleCode.CANCELLED, "stopped")
            if is_cancelled(job.key)
            else Item(job, WaveRecord(inference_id=number, inference_batch=len(jobs), slot=slot))
            for slot, job in enumerate(jobs)
        ]
        return items[:-1] if "short" in words else items

    def finish(self, item: Item) -> EngineResult:
        job = item.job
        path = Path(job.output_dir) / VISION_IMAGE
        path.parent.mkdir(parents=True, exist_ok=True)
        # No two runs write the same bytes: a file that a lost run wrote over another's is seen by its hash.
        path.write_bytes(_picture() + json.dumps({"prompt": job.args["prompt"], "run": uuid.uuid4().hex}).encode())
        for word in job.args["prompt"].split():
            if word.startswith("bytes="):
                os.truncate(path, int(word.removeprefix("bytes=")))
        with (self._root.parent / RUNS).open("a") as runs:
            runs.write(job.key + "\n")
        outputs = {
            "args": job.args,
            "status": "success",
            "message": None,
            "stack_trace": None,
            "outputs": [{"content": {}, "files": [path.relative_to(self._root).as_posix()]}],
        }
        return EngineResult(name=job.name, outputs=outputs, wave=item.wave, phases={"inference": 0.1})

    def check(self) -> None:
        """Always well."""


class ScriptedModel(ModelReplica):
    """The product's replica over the scripted engine."""

    def __init__(self, settings: GeneratorSettings, checkpoint: Checkpoint, guardrails: None) -> None:
        logs.configure(settings.log_level)
        self._root = Path(settings.output_path)
        self._engine = ScriptedEngine(self._root, checkpoint, settings.inference_batch_limit)  # type: ignore[assignment]
        self._worker = EngineWorker(self._engine, max_num_seqs=settings.inference_batch_limit)


def _picture() -> bytes:
    data = io.BytesIO()
    # As large as the tiny checkpoint makes them: clients look.
    Image.new("RGB", (256, 256), (120, 120, 120)).save(data, "JPEG")
    return data.getvalue()
