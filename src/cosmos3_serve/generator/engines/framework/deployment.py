"""Deployment: upstream's `OmniModelDeployment`, bound as it is. We set options around it and nothing inside it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from cosmos3_serve.generator.engines.framework.setup import build_setup
from cosmos3_serve.generator.replica.deployment import HEALTH_PERIOD_S, STOP_MARGIN_S, max_ongoing
from cosmos3_serve.settings import GeneratorSettings
from cosmos3_serve.weights.checkpoint import Checkpoint
from cosmos3_serve.weights.model_cache import carried
from cosmos3_serve.weights.upstream_files import UpstreamFiles

# The workers are upstream's actors below its replica; Serve's own view ends at the replica.
WORKER_CLASS = "OmniModelWorker"
WORKER_ENV = {"COSMOS_TRAINING": "0"}


def upstream_deployment(settings: GeneratorSettings, checkpoint: Checkpoint, files: UpstreamFiles) -> Any:
    """Upstream's deployment as a bound Serve application, named by the served model.

    Args:
        files: what its workers load; they inherit its environment, and fetch nothing.

    Raises:
        UsageError, CheckpointUnavailable: as `build_setup`.
    """
    from cosmos_framework.inference.ray.serve import OmniModelDeployment

    # A joined cluster's processes were not started with our environment; upstream reads it on import. Its workers are
    # children of this deployment's replica and inherit it.
    environ = {**carried(os.environ), **WORKER_ENV, **files.environ()}
    return OmniModelDeployment.options(
        name=settings.model,
        # Upstream leaves it at Ray's 5, and so never coalesces more.
        max_ongoing_requests=max_ongoing(settings),
        user_config={
            "max_batch_size": settings.max_batch_size,
            "batch_wait_timeout_s": settings.batch_wait_timeout_s,
        },
        # How soon Serve notices that a replica was killed; how long one may be silent stays upstream's own.
        health_check_period_s=HEALTH_PERIOD_S,
        graceful_shutdown_wait_loop_s=0.2,
        # Where Serve replaces it, what runs finishes first; a shutdown of the service has drained before.
        graceful_shutdown_timeout_s=settings.drain_timeout_s + STOP_MARGIN_S,
        max_constructor_retry_count=2,
        logging_config={"enable_access_log": False},
        ray_actor_options={"runtime_env": {"env_vars": environ}},
    ).bind(build_setup(settings, replace(checkpoint, path=files.checkpoint)))
