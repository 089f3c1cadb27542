"""A start without a start: every check of it that needs no GPU, no Ray and no download."""

from __future__ import annotations

import os
from typing import Any

from cosmos3_serve.generator.guardrails.packages import require_packages
from cosmos3_serve.generator.prepare import check
from cosmos3_serve.service.cluster import RayCluster
from cosmos3_serve.service.http_server import hold_port
from cosmos3_serve.settings import GeneratorSettings
from cosmos3_serve.weights.foresee import Foreseen, foresee_checkpoint, foresee_guardrails, foresee_upstream
from cosmos3_serve.weights.model_cache import settle_model_cache
from cosmos3_serve.weights.precision import require_plain


def dry_run(settings: GeneratorSettings) -> dict[str, Any]:
    """The settings in effect, with `files`: what a start would find in the caches, fetch or build.

    Leaves nothing behind but folders of a mounted model cache.

    Raises:
        StartRefused, UsageError: as a start would.
    """
    settle_model_cache()
    checked = check(settings, keep=False)
    settings, engine = checked.settings, checked.settings.engine or "framework"
    RayCluster(settings.ray_address, environ=dict(os.environ)).look()
    if settings.ray_address is None:
        hold_port(settings.host, settings.port).close()
    files: list[Foreseen] = []
    if settings.guardrails:
        require_packages(engine)
        files += foresee_guardrails(
            engine, revision=settings.guardrail_revision, cache_dir=checked.cache, environ=os.environ
        )
    files.append(foresee_checkpoint(settings.checkpoint, checked.cache, os.environ, framework=engine == "framework"))
    if engine == "diffusers" and (there := files[-1].path) is not None:
        require_plain(there, files[-1].name)
    if engine == "framework":
        files += foresee_upstream(files[-1], checked.cache, os.environ)
    return {**settings.model_dump(mode="json"), "files": [one.as_dict() for one in files]}
