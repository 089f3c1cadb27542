"""ModelReplica: the engine as a Serve deployment. `@serve.batch` owns coalescing, the worker everything below it."""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path
from typing import Any

from ray import serve

from cosmos3_serve.generator.engines.diffusers.lean import import_lean
from cosmos3_serve.generator.engines.job import EngineJob
from cosmos3_serve.generator.replica.hardware import admit_target
from cosmos3_serve.generator.replica.worker import Call, EngineWorker
from cosmos3_serve.service import logs
from cosmos3_serve.service.memory import uncollected
from cosmos3_serve.settings import GeneratorSettings
from cosmos3_serve.weights.checkpoint import Checkpoint
from cosmos3_serve.weights.guardrail_assets import GuardrailFiles

# While one coalesced batch is encoded the next one denoises; a third would only wait.
CONCURRENT_BATCHES = 2
# Calls for progress, cancellation and health must find a free place beside two full batches.
CONTROL_CALLS = 16
HEALTH_PERIOD_S = 5.0
HEALTH_TIMEOUT_S = 60.0
STOP_MARGIN_S = 30.0

_INCARNATION = uuid.uuid4().hex  # a replica is a process of its own


def max_ongoing(settings: GeneratorSettings) -> int:
    """Requests that one replica takes at once: below two batches ours could never coalesce the second; upstream's takes
    exactly one batch at a time and answers no other call."""
    if settings.engine == "framework":
        return settings.max_batch_size
    return CONCURRENT_BATCHES * settings.max_batch_size + CONTROL_CALLS


class ModelReplica:
    """One engine on its device. Deployed by reference (no decorator), so that the class is not pickled by value."""

    def __init__(self, settings: GeneratorSettings, checkpoint: Checkpoint, guardrails: GuardrailFiles | None) -> None:
        logs.configure(settings.log_level)
        os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub reads it: all that may be loaded is on the disk
        with uncollected():
            from cosmos3_serve.generator.engines.diffusers.loader import capabilities, pick_device

            device = pick_device(settings.device)
            if device.type == "cpu" and guardrails is None:  # whose packages want all of transformers
                import_lean()
            from cosmos3_serve.generator.engines.diffusers.engine import DiffusersEngine

        admit_target(settings, capabilities(device))
        self._root = Path(settings.output_path)
        self._engine = DiffusersEngine(
            checkpoint,
            output_root=self._root,
            max_num_seqs=settings.inference_batch_limit,
            device=settings.device,
            guardrails=guardrails,
        )
        self._worker = EngineWorker(self._engine, max_num_seqs=settings.inference_batch_limit)

    def reconfigure(self, config: dict[str, Any]) -> None:
        """Serve's `user_config`: both knobs of coalescing may change without a restart."""
        self._coalesced.set_max_batch_size(int(config["max_batch_size"]))
        self._coalesced.set_batch_wait_timeout_s(float(config["batch_wait_timeout_s"]))

    async def generate(self, job: dict[str, Any]) -> dict[str, Any]:
        """One `EngineJob`, as JSON, to its `EngineResult`, as JSON. A result comes whatever the neighbours do."""
        call = self._worker.enter(EngineJob.model_validate(job))
        cancelled = False
        try:
            result: dict[str, Any] = await self._coalesced(call)
            return result
        except asyncio.CancelledError:
            cancelled = True
            raise
        finally:
            self._worker.leave(call, cancelled=cancelled)

    # Sizes come by `reconfigure`.
    @serve.batch(max_concurrent_batches=CONCURRENT_BATCHES)  # type: ignore[untyped-decorator]
    async def _coalesced(self, calls: list[Call]) -> list[dict[str, Any]]:
        return [result.model_dump(mode="json") for result in await self._worker.run(calls)]

    async def info(self) -> dict[str, Any]:
        """The engine's `EngineInfo`, as JSON, and the process id."""
        info = await asyncio.to_thread(self._engine.info)
        return info.model_dump(mode="json")

    async def incarnation(self) -> str:
        """Tells this replica from those before and after it."""
        return _INCARNATION

    async def progress(self) -> dict[str, tuple[int, int]]:
        return self._worker.progress()

    async def cancel(self, keys: list[str]) -> None:
        self._worker.cancel(keys)

    async def read_probe(self, name: str) -> str:
        """Text of a file that another actor wrote below the output root: do we share a filesystem?"""
        path = self._root / name
        return await asyncio.to_thread(lambda: path.read_text()[:256])

    async def check_health(self) -> None:
        """Serve replaces the replica when this raises."""
        if not await self._coalesced._is_batching_task_alive():
            raise RuntimeError("the batching task has ended")
        await self._worker.check()


def model_deployment(settings: GeneratorSettings, checkpoint: Checkpoint, guardrails: GuardrailFiles | None) -> Any:
    """The model as a bound Serve application, named by the served model."""
    gpus = settings.world_size if settings.device != "cpu" and _gpu_visible() else 0
    return (
        serve.deployment(ModelReplica)
        .options(
            name=settings.model,
            num_replicas=1,
            max_ongoing_requests=max_ongoing(settings),
            user_config={
                "max_batch_size": settings.max_batch_size,
                "batch_wait_timeout_s": settings.batch_wait_timeout_s,
            },
            ray_actor_options={"num_cpus": 1, "num_gpus": gpus},
            health_check_period_s=HEALTH_PERIOD_S,
            health_check_timeout_s=HEALTH_TIMEOUT_S,
            graceful_shutdown_wait_loop_s=0.2,
            # Where Serve replaces it, what runs finishes first; a shutdown of the service has drained before.
            graceful_shutdown_timeout_s=settings.drain_timeout_s + STOP_MARGIN_S,
            max_constructor_retry_count=2,
            logging_config={"enable_access_log": False},
        )
        .bind(settings, checkpoint, guardrails)
    )


def _gpu_visible() -> bool:
    import ray

    return ray.cluster_resources().get("GPU", 0) >= 1 and os.environ.get("CUDA_VISIBLE_DEVICES") != ""
