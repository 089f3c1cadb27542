"""PodTemplate: containers with their environment, probes and volumes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from cosmos3_serve.deploy.kube.base import KubeModel, PodMeta
from cosmos3_serve.deploy.kube.placement import Affinity, Toleration


class KeyRef(KubeModel):
    """One key of a Secret or ConfigMap."""

    name: str
    key: str
    optional: bool | None = None


class FieldRef(KubeModel):
    field_path: str


class EnvSource(KubeModel):
    secret_key_ref: KeyRef | None = None
    config_map_key_ref: KeyRef | None = None
    field_ref: FieldRef | None = None


class EnvVar(KubeModel):
    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    value: str | None = None
    value_from: EnvSource | None = None


class NameRef(KubeModel):
    name: str


class EnvFrom(KubeModel):
    config_map_ref: NameRef


class Port(KubeModel):
    name: str = Field(max_length=15)
    container_port: int = Field(ge=1, le=65535)


class Mount(KubeModel):
    name: str
    mount_path: str
    sub_path: str | None = None
    read_only: bool | None = None


class Resources(KubeModel):
    requests: Mapping[str, str] | None = None
    limits: Mapping[str, str] | None = None


class Exec(KubeModel):
    command: list[str]


class HttpGet(KubeModel):
    path: str
    port: int | str


class Probe(KubeModel):
    exec: Exec | None = None
    http_get: HttpGet | None = None
    initial_delay_seconds: int | None = None
    period_seconds: int
    timeout_seconds: int
    failure_threshold: int


class Hook(KubeModel):
    exec: Exec


class Lifecycle(KubeModel):
    pre_stop: Hook


class ContainerSecurity(KubeModel):
    """What Kubernetes' restricted profile asks of a container."""

    allow_privilege_escalation: bool = False
    capabilities: Mapping[str, list[str]] = {"drop": ["ALL"]}
    read_only_root_filesystem: bool | None = None


class Container(KubeModel):
    name: str
    image: str = Field(min_length=1)
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] | None = None
    command: list[str] | None = None
    args: list[str] | None = None
    working_dir: str | None = None
    env: list[EnvVar] | None = None
    env_from: list[EnvFrom] | None = None
    ports: list[Port] | None = None
    resources: Resources | None = None
    startup_probe: Probe | None = None
    readiness_probe: Probe | None = None
    liveness_probe: Probe | None = None
    lifecycle: Lifecycle | None = None
    security_context: ContainerSecurity | None = None
    volume_mounts: list[Mount] | None = None


class ClaimSource(KubeModel):
    claim_name: str
    read_only: bool | None = None


class EmptyDir(KubeModel):
    medium: Literal["Memory"] | None = None
    size_limit: str | None = None


class SecretItem(KubeModel):
    key: str
    path: str
    mode: int | None = None


class SecretSource(KubeModel):
    secret_name: str
    items: list[SecretItem] | None = None
    default_mode: int | None = None


class ConfigMapSource(KubeModel):
    name: str
    items: list[SecretItem] | None = None


class Volume(KubeModel):
    name: str
    config_map: ConfigMapSource | None = None
    persistent_volume_claim: ClaimSource | None = None
    empty_dir: EmptyDir | None = None
    secret: SecretSource | None = None


class PodSecurity(KubeModel):
    """Not root, and volumes that the group may write; an image of others decides about its user itself (None)."""

    run_as_non_root: bool | None = True
    run_as_user: int | None = None
    run_as_group: int | None = None
    fs_group: int | None = None
    fs_group_change_policy: Literal["OnRootMismatch", "Always"] | None = None
    seccomp_profile: Mapping[str, str] | None = {"type": "RuntimeDefault"}


class PodSpec(KubeModel):
    service_account_name: str | None = None
    automount_service_account_token: bool | None = None
    restart_policy: Literal["Never", "OnFailure", "Always"] | None = None
    termination_grace_period_seconds: int | None = Field(default=None, ge=0)
    image_pull_secrets: list[NameRef] | None = None
    priority_class_name: str | None = None
    runtime_class_name: str | None = None
    node_selector: Mapping[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    security_context: PodSecurity | None = None
    init_containers: list[Container] | None = None
    containers: list[Container] = Field(min_length=1)
    volumes: list[Volume] | None = None


class PodTemplate(KubeModel):
    metadata: PodMeta | None = None
    spec: PodSpec


def env(**values: str) -> list[EnvVar]:
    return [EnvVar(name=name, value=value) for name, value in values.items()]


def secret_env(variable: str, secret: str, key: str, *, optional: bool | None = None) -> EnvVar:
    """A variable whose value stays in the cluster's Secret."""
    return EnvVar(name=variable, value_from=EnvSource(secret_key_ref=KeyRef(name=secret, key=key, optional=optional)))


def claim(name: str, claim_name: str) -> Volume:
    return Volume(name=name, persistent_volume_claim=ClaimSource(claim_name=claim_name))


def exec_probe(command: list[str], *, period: int, timeout: int, failures: int) -> Probe:
    return Probe(exec=Exec(command=command), period_seconds=period, timeout_seconds=timeout, failure_threshold=failures)


def shell(script: str) -> list[str]:
    """A container's command that runs a script; `-eu` stands in the script, where a reader sees it."""
    return ["/bin/sh", "-c", script]


def containers_of(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Every container at any depth of a rendered object (a pod template may be nested anywhere)."""
    found: list[Mapping[str, Any]] = []
    for key, value in document.items():
        if key in ("containers", "initContainers") and isinstance(value, list):
            found += value
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Mapping):
                found += containers_of(item)
    return found
