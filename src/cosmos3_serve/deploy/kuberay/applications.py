"""Serve's configuration of each service: what is imported, with which settings, and where its replicas run.

Names and import paths are those of the services' rooms, which this one may not import; a test compares them. The head
has no CPU to give, so that whatever asks for one runs on a worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cosmos3_serve.contract.wire import APP_NAME
from cosmos3_serve.deploy.kuberay.ray_service import application
from cosmos3_serve.deploy.kuberay.values import KuberayValues, Service
from cosmos3_serve.errors import FieldError, UsageError
from cosmos3_serve.settings import GeneratorSettings, ReasonerSettings, Settings, WorkerRange

PORT = 8000
OUTPUTS = "/outputs"
GUARD_APP, GUARD = "cosmos3_guardrails", "text_guard"
REASONER_APP, REPLICAS_APP = "cosmos3_reasoner", "cosmos3_reasoner_replicas"
# Long generations get this long to end; the settings' own minute is for one machine.
GENERATOR_DRAIN_S = 600
# Fixed by the manifest: another value here would contradict a probe, a mount or a Service.
FIXED = ("host", "port", "name", "ray_address", "cache_dir", "output_path", "vllm_python")
MODELS: Mapping[Service, type[Settings]] = {"generator": GeneratorSettings, "reasoner": ReasonerSettings}


def service_settings(service: Service, values: KuberayValues, routing: str) -> Settings:
    """The service's settings, checked as the service checks them, but without anybody's environment.

    Raises:
        UsageError: code `deploy_bad_value` or `deploy_unknown_key`, named by the key `settings.…`.
    """
    model, given = MODELS[service], {k.replace("-", "_"): v for k, v in values.settings.items()}
    wrong = [FieldError(f"settings.{k}", "is set by the manifest", "leave it out") for k in given if k in FIXED]
    wrong += [
        FieldError(f"settings.{k}", f"is no setting of the {service}", "see `cosmos3 settings`")
        for k in given
        if k not in model.model_fields
    ]
    if wrong:
        raise UsageError(
            f"{wrong[0].field} {wrong[0].message}", code="deploy_unknown_key", remedy=wrong[0].remedy, errors=wrong
        )
    try:
        found = model.load({**_fixed(service, values, routing), **given}, environ={})
    except UsageError as error:
        wrong = [FieldError(f"settings.{e.field.removeprefix('--')}", e.message) for e in error.errors]
        raise UsageError(error.detail, code="deploy_bad_value", remedy="see `cosmos3 settings`", errors=wrong) from None
    if isinstance(found, ReasonerSettings):
        _require_room(found, values)
    return found


def _require_room(settings: ReasonerSettings, values: KuberayValues) -> None:
    """Raises UsageError (code `deploy_bad_value`): more replicas than the pods have GPUs."""
    room = pods(values)[1] * values.worker.gpus
    if not values.worker.gpus or settings.workers.most <= room:
        return
    detail = f"{settings.workers.most} replicas need as many GPUs, and the worker pods have {room} at most"
    remedy = "change settings.workers, worker.replicas, worker.gpus or autoscaling.max_replicas"
    field = FieldError("settings.workers", detail, remedy)
    raise UsageError(detail, code="deploy_bad_value", remedy=remedy, errors=[field])


def _fixed(service: Service, values: KuberayValues, routing: str) -> dict[str, Any]:
    if service == "generator":
        return {
            "engine": "diffusers",
            "port": PORT,
            "output_path": OUTPUTS,
            "world_size": max(1, values.worker.gpus),
            "drain_timeout_s": GENERATOR_DRAIN_S,
        }
    fewest, most = pods(values)
    each = max(1, values.worker.gpus)
    return {
        "port": PORT,
        "workers": WorkerRange(fewest * each, most * each),
        "gateways": most,
        "routing": routing,
        # The clips of our own smoke and perf jobs; every other private address stays closed.
        "media_allow": [f"cosmos3-nano-reasoner-{job}:8080" for job in ("smoke", "perf")],
    }


def pods(values: KuberayValues) -> tuple[int, int]:
    """Fewest and most worker pods."""
    scaling, asked = values.autoscaling, values.worker.replicas
    if not scaling.enabled:
        return asked, asked
    # A gateway lives in a worker pod, and wakes a fleet that sleeps: one pod stays.
    return max(1, min(scaling.min_replicas, asked)), max(scaling.max_replicas, asked)


def serve_config(service: Service, values: KuberayValues, settings: Settings) -> dict[str, Any]:
    """Serve's declarative configuration; `args` are the settings that differ from the defaults."""
    args = settings.model_dump(mode="json", exclude_defaults=True) | {"port": PORT}
    applications = _generator(settings, args) if isinstance(settings, GeneratorSettings) else _reasoner(values, args)
    return {"proxy_location": "Disabled", "applications": applications}


def _generator(settings: GeneratorSettings, args: dict[str, Any]) -> list[dict[str, Any]]:
    gpus = {"num_gpus": settings.world_size} if settings.device != "cpu" else {}
    deployments = [_on_worker("ingress")]
    if settings.engine != "framework":  # upstream's deployment has options of its own
        deployments.append(_on_worker(settings.model, **gpus))
    found = [application(APP_NAME, "cosmos3_serve.generator.application:build", args, deployments)]
    if settings.guardrails:
        guard = "cosmos3_serve.generator.application:build_guard"
        found.append(application(GUARD_APP, guard, args, [_on_worker(GUARD)]))
    return found


def _reasoner(values: KuberayValues, args: dict[str, Any]) -> list[dict[str, Any]]:
    gpus = {"num_gpus": 1} if values.worker.gpus else {}
    where = "cosmos3_serve.reasoner.application"
    # One gateway a pod: each pod's readiness is its own gateway's, and the Service spreads questions over all.
    gateway = _on_worker("gateway") | {"max_replicas_per_node": 1}
    return [
        application(REASONER_APP, f"{where}:build_gateways", args, [gateway]),
        application(REPLICAS_APP, f"{where}:build_replicas", args, [_on_worker("replica", **gpus)]),
    ]


def _on_worker(name: str, **more: float) -> dict[str, Any]:
    return {"name": name, "ray_actor_options": {"num_cpus": 1, **more}}
