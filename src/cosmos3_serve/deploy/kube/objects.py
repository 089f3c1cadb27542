"""The objects of Kubernetes' own API that our manifests are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from cosmos3_serve.deploy.kube.base import KubeModel, KubeObject, Meta, PodMeta
from cosmos3_serve.deploy.kube.pod import PodTemplate, Resources


class ConfigMap(KubeObject):
    api_version: Literal["v1"] = "v1"
    kind: Literal["ConfigMap"] = "ConfigMap"
    data: Mapping[str, str]


class ServiceAccount(KubeObject):
    api_version: Literal["v1"] = "v1"
    kind: Literal["ServiceAccount"] = "ServiceAccount"
    automount_service_account_token: bool | None = None


class ClaimSpec(KubeModel):
    access_modes: list[Literal["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany", "ReadWriteOncePod"]]
    storage_class_name: str | None = None
    resources: Resources


class Claim(KubeObject):
    api_version: Literal["v1"] = "v1"
    kind: Literal["PersistentVolumeClaim"] = "PersistentVolumeClaim"
    spec: ClaimSpec


class ServicePort(KubeModel):
    name: str
    port: int = Field(ge=1, le=65535)
    target_port: int | str


class ServiceSpec(KubeModel):
    type: Literal["ClusterIP"] = "ClusterIP"
    selector: Mapping[str, str]
    ports: list[ServicePort]
    publish_not_ready_addresses: bool | None = None


class Service(KubeObject):
    api_version: Literal["v1"] = "v1"
    kind: Literal["Service"] = "Service"
    spec: ServiceSpec


class ExitCodes(KubeModel):
    container_name: str
    operator: Literal["In", "NotIn"] = "In"
    values: list[int]


class PodCondition(KubeModel):
    type: str
    status: Literal["True", "False"] = "True"


class FailureRule(KubeModel):
    action: Literal["FailJob", "Ignore", "Count"]
    on_exit_codes: ExitCodes | None = None
    on_pod_conditions: list[PodCondition] | None = None


class FailurePolicy(KubeModel):
    rules: list[FailureRule]


class JobSpec(KubeModel):
    backoff_limit: int = Field(ge=0)
    active_deadline_seconds: int | None = Field(default=None, ge=1)
    ttl_seconds_after_finished: int | None = Field(default=None, ge=0)
    pod_failure_policy: FailurePolicy | None = None
    template: PodTemplate


class Job(KubeObject):
    api_version: Literal["batch/v1"] = "batch/v1"
    kind: Literal["Job"] = "Job"
    spec: JobSpec


class JobTemplate(KubeModel):
    metadata: PodMeta | None = None
    spec: JobSpec


class CronJobSpec(KubeModel):
    schedule: str
    suspend: bool
    concurrency_policy: Literal["Allow", "Forbid", "Replace"]
    starting_deadline_seconds: int | None = None
    successful_jobs_history_limit: int | None = None
    failed_jobs_history_limit: int | None = None
    job_template: JobTemplate


class CronJob(KubeObject):
    api_version: Literal["batch/v1"] = "batch/v1"
    kind: Literal["CronJob"] = "CronJob"
    spec: CronJobSpec


class Selector(KubeModel):
    match_labels: Mapping[str, str]


class IpBlock(KubeModel):
    cidr: str
    except_: list[str] | None = Field(default=None, alias="except")


class Peer(KubeModel):
    pod_selector: Selector | None = None
    namespace_selector: Selector | None = None
    ip_block: IpBlock | None = None


class PolicyPort(KubeModel):
    port: int
    protocol: Literal["TCP", "UDP"] = "TCP"


class Ingress(KubeModel):
    from_: list[Peer] | None = Field(default=None, alias="from")
    ports: list[PolicyPort] | None = None


class Egress(KubeModel):
    to: list[Peer] | None = None
    ports: list[PolicyPort] | None = None


class NetworkPolicySpec(KubeModel):
    pod_selector: Selector
    policy_types: tuple[Literal["Ingress", "Egress"], ...] = ("Ingress", "Egress")
    ingress: list[Ingress]
    egress: list[Egress]


class NetworkPolicy(KubeObject):
    api_version: Literal["networking.k8s.io/v1"] = "networking.k8s.io/v1"
    kind: Literal["NetworkPolicy"] = "NetworkPolicy"
    spec: NetworkPolicySpec


class DisruptionSpec(KubeModel):
    """The one form that Kubernetes takes whoever owns the pods."""

    min_available: int = Field(ge=0)
    # A pod that is not ready serves nobody: without this it holds up a drain for ever.
    unhealthy_pod_eviction_policy: Literal["IfHealthyBudget", "AlwaysAllow"] = "AlwaysAllow"
    selector: Selector


class PodDisruptionBudget(KubeObject):
    api_version: Literal["policy/v1"] = "policy/v1"
    kind: Literal["PodDisruptionBudget"] = "PodDisruptionBudget"
    spec: DisruptionSpec


def claim_object(name: str, *, size: str, mode: str, storage_class: str | None, labels: Mapping[str, str]) -> Claim:
    """A claim of `size` (a quantity such as 200Gi)."""
    spec = {"accessModes": [mode], "storageClassName": storage_class, "resources": {"requests": {"storage": size}}}
    return Claim(metadata=Meta(name=name, labels=labels), spec=ClaimSpec.model_validate(spec))
