"""A start without a start: every check of it that needs no Ray and no download."""

from __future__ import annotations

import os
from typing import Any

from cosmos3_serve.reasoner.prepare import check, served_model
from cosmos3_serve.service.cluster import RayCluster
from cosmos3_serve.service.http_server import hold_port
from cosmos3_serve.settings import ReasonerSettings
from cosmos3_serve.weights.checkpoint import resolve_checkpoint
from cosmos3_serve.weights.foresee import VERIFIED, foresee_checkpoint
from cosmos3_serve.weights.model_cache import settle_model_cache


def dry_run(settings: ReasonerSettings) -> dict[str, Any]:
    """The settings in effect, with `files`: what a start would find in the cache, fetch or build.

    Whether the model fits is judged only where its checkpoint is in place.

    Raises:
        StartRefused, UsageError: as a start would.
    """
    settle_model_cache()
    settings, interpreter, cache = check(settings)
    RayCluster(settings.ray_address, environ=dict(os.environ)).look()
    if settings.ray_address is None:
        hold_port(settings.host, settings.port).close()
    found = foresee_checkpoint(settings.model, cache, os.environ)
    if found.state == VERIFIED:
        served_model(settings, resolve_checkpoint(settings.model, cache), interpreter)
    return {**settings.model_dump(mode="json"), "files": [found.as_dict()]}
