"""Checks of the Serve configuration in a RayService, before a cluster finds the fault."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cosmos3_serve.contract.applicable import refuse_ignored
from cosmos3_serve.contract.rules import check_placement
from cosmos3_serve.deploy.kuberay.applications import FIXED, MODELS
from cosmos3_serve.deploy.kuberay.values import Service
from cosmos3_serve.deploy.yamltext import from_yaml
from cosmos3_serve.errors import Cosmos3Error, UsageError
from cosmos3_serve.settings import GeneratorSettings

OURS = "cosmos3_serve."


def config_findings(text: str) -> Iterator[tuple[str, str, str]]:
    """Code, place and words of each finding in `spec.serveConfigV2`."""
    try:
        (config,) = from_yaml(text, "serveConfigV2")
        applications = list(config["applications"])
    except (Cosmos3Error, ValueError, KeyError, TypeError):
        yield "serve_config", "", "holds no list of applications"
        return
    if config.get("proxy_location") != "Disabled":
        # Serve's own proxy would answer the public port without our token.
        yield "serve_proxy", ".proxy_location", "must be Disabled: our ingress answers the public port itself"
    said: set[str] = set()  # applications of one service have the same settings, and the same fault
    for number, app in enumerate(applications):
        path = str(app.get("import_path", "")) if isinstance(app, Mapping) else ""
        if path.startswith(OURS):
            service: Service = "generator" if path.startswith(f"{OURS}generator.") else "reasoner"
            for code, words in _settings(service, app.get("args") or {}):
                if words not in said:
                    yield code, f".applications.{number}.args", words
                said.add(words)


def _settings(service: Service, args: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    model = MODELS[service]
    for name in args:
        if name not in model.model_fields:
            yield "serve_args", f"{name} is no setting of the {service}"
        elif name in FIXED and name not in ("port", "output_path"):
            yield "serve_args", f"{name} is decided by the manifest"
    try:
        settings = model.load(args, environ={})
    except Cosmos3Error as error:
        yield "serve_args", error.detail
        return
    try:
        refuse_ignored(settings)
    except UsageError as error:
        for found in error.errors:
            name = found.field.removeprefix("--").replace("-", "_")
            yield "serve_args", f"settings.{name} {found.message}: the service would refuse to start"
    if not isinstance(settings, GeneratorSettings):
        return
    try:
        check_placement(settings)
    except UsageError as error:
        yield (
            "placement",
            f"{error.detail} (worker.gpus, settings.parallelism_preset): the service would refuse to start",
        )
    if settings.guardrails and settings.engine == "diffusers" and settings.guardrail_revision is None:
        yield (
            "guardrail_revision",
            "guardrails are on and guardrail_revision is not set: the service would refuse to start "
            "(settings.guardrail_revision=COMMIT, or settings.guardrails=off)",
        )
