"""The generator as Serve applications that a cluster's own tools deploy (KubeRay, `serve deploy`).

`import_path: cosmos3_serve.generator.application:build`, and `:build_guard` beside it while guardrails are on. `args`
are fields of `GeneratorSettings`; what they leave out comes from the environment of the cluster's head, where Serve
runs the builder. Nobody watches over the applications then as `run_generator` does: Serve replaces what dies, and
`leave` drains before a pod ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cosmos3_serve.errors import StartRefused
from cosmos3_serve.generator.prepare import prepare, prove
from cosmos3_serve.service import logs
from cosmos3_serve.service.joined import joined_settings
from cosmos3_serve.settings import GeneratorSettings
from cosmos3_serve.weights.cache_dir import default_cache
from cosmos3_serve.weights.checkpoint import Checkpoint
from cosmos3_serve.weights.guardrail_assets import GuardrailFiles
from cosmos3_serve.weights.model_cache import settle_model_cache


def build(args: Mapping[str, Any]) -> Any:
    """Ingress and model, bound. Checks what `ray-serve` checks, and fetches what is missing in the model cache.

    Raises:
        StartRefused, UsageError: with what to change; Serve shows it as the application's message.
    """
    settings = _settings(args)
    prepared = prepare(settings)
    return bound(prepared.settings, prepared.checkpoint, prepared.guardrails, settings.port, prepared.revision)


def build_guard(args: Mapping[str, Any]) -> Any:
    """The text guard, bound.

    Raises:
        GuardrailsUnavailable: something is missing, altered or not permitted.
        StartRefused: guardrails are off: the application has no place then.
    """
    from cosmos3_serve.generator.guardrails.replica import guard_application

    settings = _settings(args)
    files = prove(settings, (settings.cache_dir or default_cache()).expanduser().absolute())
    if files is None:
        raise StartRefused("guardrails are off: remove this application", code="guard_not_wanted")
    return guard_application(settings, files)


def bound(
    settings: GeneratorSettings, checkpoint: Checkpoint, guardrails: GuardrailFiles | None, port: int, revision: str
) -> Any:
    """The application of one engine: the ingress over its model."""
    from cosmos3_serve.generator.ingress import ingress_deployment

    if settings.engine == "framework":
        from cosmos3_serve.generator.engines.framework.deployment import model_deployment
    else:
        from cosmos3_serve.generator.model import model_deployment

    model = model_deployment(settings, checkpoint, guardrails)
    return ingress_deployment(settings, checkpoint, model, port, revision)


def _settings(args: Mapping[str, Any]) -> GeneratorSettings:
    settings = joined_settings(GeneratorSettings, args)
    logs.configure(settings.log_level)
    settle_model_cache()
    return settings
