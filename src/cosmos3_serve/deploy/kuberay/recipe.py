"""The files of the KubeRay target for one service."""

from __future__ import annotations

from typing import Any

from cosmos3_serve.contract.rules import check_placement
from cosmos3_serve.deploy.dynamo.perf import profile_config
from cosmos3_serve.deploy.dynamo.values import Profile
from cosmos3_serve.deploy.kube.base import KubeObject, Meta, labels
from cosmos3_serve.deploy.kube.objects import ServiceAccount, claim_object
from cosmos3_serve.deploy.kuberay.applications import PORT, pods, serve_config, service_settings
from cosmos3_serve.deploy.kuberay.batch import batch_cron, batch_job
from cosmos3_serve.deploy.kuberay.guard import disruption_budgets, network_policy
from cosmos3_serve.deploy.kuberay.ingress import serve_service, tls_ingress
from cosmos3_serve.deploy.kuberay.pods import head, worker
from cosmos3_serve.deploy.kuberay.ray_service import (
    AuthOptions,
    ClusterConfig,
    HeadGroup,
    RayService,
    RayServiceSpec,
    UpgradeStrategy,
    WorkerGroup,
)
from cosmos3_serve.deploy.kuberay.values import KuberayValues, Service, account_of
from cosmos3_serve.deploy.manifest import ManifestFile, file
from cosmos3_serve.deploy.yamltext import to_yaml
from cosmos3_serve.errors import FieldError, UsageError
from cosmos3_serve.settings import GeneratorSettings, Settings

MODEL = "nvidia/cosmos3-nano-reasoner"
JOB_NOTE = "A Kubernetes Job, for `kubectl apply`; not a workflow of NPA's format (docs/npa-names.md)."
NAMES: dict[Service, str] = {"generator": "cosmos3-generator", "reasoner": "cosmos3-nano-reasoner"}


def name_of(service: Service, values: KuberayValues) -> str:
    return values.name or NAMES[service]


def recipe(service: Service, values: KuberayValues, routing: Profile) -> list[ManifestFile]:
    """
    Raises:
        UsageError: a setting that does not fit, or more worker pods than the generator can use.
    """
    if service == "generator" and values.worker.replicas != 1:
        raise UsageError(
            "the generator runs in one worker pod: its ledger has one writer",
            code="deploy_bad_value",
            remedy="leave worker.replicas at 1; a second service has a name and an output claim of its own",
        )
    settings = service_settings(service, values, routing)
    if isinstance(settings, GeneratorSettings):
        _require_placement(settings)
    name = name_of(service, values)
    command = f"cosmos3 deploy render --target kuberay --service {service}"
    claims: list[KubeObject] = [
        claim_object(
            values.cache.claim,
            size=values.cache.size,
            mode="ReadWriteMany",
            storage_class=values.cache.storage_class,
            labels=labels(name, "model-cache"),
        )
    ]
    if service == "generator":
        claims.append(
            claim_object(
                values.outputs.claim,
                size=values.outputs.size,
                mode="ReadWriteMany",
                storage_class=values.outputs.storage_class,
                labels=labels(name, "outputs"),
            )
        )
    guards: list[KubeObject] = [network_policy(service, name, values), *disruption_budgets(name, values)]
    account = values.service_account
    if account.annotations:
        meta = Meta(name=account_of(name, values) or name, labels=labels(name, "pods"), annotations=account.annotations)
        guards.append(ServiceAccount(metadata=meta, automount_service_account_token=False))
    deploy: list[KubeObject] = [ray_service(service, name, values, settings), *guards]
    files = [
        file("kuberay/claims.yaml", "model-cache", claims, command),
        file("kuberay/deploy.yaml", "deploy", deploy, command),
        ManifestFile("kuberay/kustomization.yaml", "deploy", [_kustomization()], command),
        file("kuberay/ingress.yaml", "ingress", [tls_ingress(name, values)], command),
    ]
    if isinstance(settings, GeneratorSettings):
        engine = settings.engine or "framework"
        files += [
            file("batch/cosmos3-ray-batch.yaml", "batch", batch_job(values, name, engine), command, JOB_NOTE),
            file("batch/cosmos3-ray-batch-cron.yaml", "batch", batch_cron(values, name, engine), command),
        ]
    else:
        endpoint = f"http://{serve_service(name)}:{PORT}"
        profile = profile_config(NAMES["reasoner"], routing, endpoint, MODEL, {})
        files.append(file("perf/profiles/kuberay.yaml", "perf", [profile], command))
    return files


def _require_placement(settings: GeneratorSettings) -> None:
    """Raises UsageError (code `deploy_bad_value`): GPUs that this engine would refuse to start with."""
    try:
        check_placement(settings)
    except UsageError as error:
        raise UsageError(
            error.detail,
            code="deploy_bad_value",
            remedy="change worker.gpus, settings.parallelism_preset or settings.engine",
            errors=[FieldError("worker.gpus", error.detail)],
        ) from None


def ray_service(service: Service, name: str, values: KuberayValues, settings: Settings) -> RayService:
    drain: float = settings.drain_timeout_s  # type: ignore[attr-defined]  # both services have it
    fewest, most = pods(values)
    return RayService(
        metadata=Meta(name=name, labels=labels(name, "service")),
        spec=RayServiceSpec(
            upgrade_strategy=UpgradeStrategy(type=values.upgrade),
            exclude_head_pod_from_serve_svc=True,
            serve_config_v2=to_yaml([serve_config(service, values, settings)]),
            ray_cluster_config=ClusterConfig(
                ray_version=values.ray_version,
                auth_options=AuthOptions(mode="token"),
                enable_in_tree_autoscaling=values.autoscaling.enabled,
                head_group_spec=HeadGroup(
                    ray_start_params={"dashboard-host": "0.0.0.0", "num-cpus": "0"},
                    template=head(service, name, values, drain),
                ),
                worker_group_specs=[
                    WorkerGroup(
                        group_name="gpu",
                        replicas=values.worker.replicas,
                        min_replicas=fewest,
                        max_replicas=most,
                        ray_start_params={},
                        template=worker(service, name, values, drain),
                    )
                ],
            ),
        ),
    )


def _kustomization() -> dict[str, Any]:
    """For `apply -k` and for an overlay of one's own. The claims are left out: they outlive what uses them.

    So is the Ingress: whether anybody outside the cluster may ask is a decision of its own.
    """
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["deploy.yaml"],
    }
