"""The generator as Serve applications that a cluster's own tools deploy (KubeRay, `serve deploy`).

`import_path: cosmos3_serve.generator.application:build`, and `:build_guard` beside it while guardrails are on. `args`
are fields of `GeneratorSettings`; what they leave out comes from the environment of the cluster's head, where Serve
runs the builder. Nobody watches over the applications then as `run_generator` does: Serve replaces what dies, and
`leave` drains before a pod ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cosmos3_serve.contract.views import AssetRow
from cosmos3_serve.errors import StartRefused
from cosmos3_serve.generator.prepare import Prepared, prepare, prove
from cosmos3_serve.service import logs
from cosmos3_serve.service.joined import joined_settings
from cosmos3_serve.settings import GeneratorSettings
from cosmos3_serve.weights.cache_dir import default_cache
from cosmos3_serve.weights.model_cache import settle_model_cache


def build(args: Mapping[str, Any]) -> Any:
    """Ingress and model, bound. Checks what `ray-serve` checks, and fetches what is missing in the model cache.

    Raises:
        StartRefused, UsageError: with what to change; Serve shows it as the application's message.
    """
    settings = _settings(args)
    return bound(prepare(settings), settings.port)


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


def bound(prepared: Prepared, port: int) -> Any:
    """The application of one engine: the ingress over its model."""
    from cosmos3_serve.generator.http.ingress import ingress_deployment

    settings, checkpoint = prepared.settings, prepared.checkpoint
    if prepared.upstream is not None:
        from cosmos3_serve.generator.engines.framework.deployment import upstream_deployment

        model = upstream_deployment(settings, checkpoint, prepared.upstream)
    else:
        from cosmos3_serve.generator.replica.deployment import model_deployment

        model = model_deployment(settings, checkpoint, prepared.guardrails)
    assets = tuple(
        AssetRow(repo=a.repo, revision=a.revision, purpose=a.purpose, digest=a.digest) for a in prepared.assets
    )
    return ingress_deployment(settings, checkpoint, model, port, prepared.revision, assets)


def _settings(args: Mapping[str, Any]) -> GeneratorSettings:
    settings = joined_settings(GeneratorSettings, args)
    logs.configure(settings.log_level)
    settle_model_cache()
    return settings
