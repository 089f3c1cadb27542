"""Binding: the parts of the framework engine put together, in the ingress."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cosmos3_serve.contract.profile import EngineProfile
from cosmos3_serve.contract.wire import APP_NAME
from cosmos3_serve.generator.engines.framework.port import FrameworkEngine
from cosmos3_serve.generator.engines.framework.replicas import RayReplicas
from cosmos3_serve.generator.engines.framework.supervisor import Supervisor
from cosmos3_serve.generator.engines.guard import upstream_checks
from cosmos3_serve.generator.engines.job import EngineInfo
from cosmos3_serve.generator.guardrails.record import guard_record
from cosmos3_serve.generator.replica.hardware import admit_target
from cosmos3_serve.settings import GeneratorSettings
from cosmos3_serve.weights.checkpoint import Checkpoint


def bind_engine(
    settings: GeneratorSettings,
    checkpoint: Checkpoint,
    profile: EngineProfile,
    handle: Any,
    on_replaced: Callable[[], None],
) -> tuple[FrameworkEngine, Supervisor]:
    """The engine's port and its supervisor, which is not running yet."""
    replicas = RayReplicas(APP_NAME, settings.model, settings.world_size)
    engine = FrameworkEngine(
        handle,
        replicas,
        engine_info(settings, checkpoint, profile),
        output_root=settings.output_path,
        guarded=settings.guardrails,
        limit=min(settings.max_batch_size, settings.inference_batch_limit),
        make_overrides=_overrides,
        admit=partial(admit_target, settings),
        on_replaced=on_replaced,
    )
    return engine, Supervisor(engine, replicas)


def engine_info(settings: GeneratorSettings, checkpoint: Checkpoint, profile: EngineProfile) -> EngineInfo:
    """All of it but the devices, which the replica's machine has to say."""
    return EngineInfo(
        engine=profile.engine,
        revision=profile.revision,
        backend=profile.backend,
        checkpoint=checkpoint.id,
        checkpoint_revision=checkpoint.revision,
        checkpoint_digest=checkpoint.digest,
        weights=checkpoint.weights,
        device="",
        dtype=_precision(checkpoint),
        supported_modes=tuple(sorted(profile.supported_modes)),
        max_num_seqs=settings.inference_batch_limit,
        # Upstream loads its own checks with the weights: a replica that runs has them.
        guardrails=guard_record(settings.guardrails, upstream_checks(settings.guardrails, modality="video"))
        | {"applied": settings.guardrails},
    )


def _precision(checkpoint: Checkpoint) -> str:
    """What the checkpoint's config says; upstream's own default is bfloat16 (source: its Cosmos3-Nano config)."""
    try:
        config = json.loads((checkpoint.path / "config.json").read_text(encoding="utf-8"))
        return str(config["model"]["config"]["precision"])
    except (OSError, ValueError, KeyError, TypeError):
        return "bfloat16"


def _overrides(fields: Mapping[str, Any]) -> Any:
    from cosmos_framework.inference.args import OmniSampleOverrides

    return OmniSampleOverrides(**fields)
