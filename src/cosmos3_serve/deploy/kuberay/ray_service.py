"""RayService `ray.io/v1`: a Ray cluster and the Serve applications on it, as KubeRay's operator takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from cosmos3_serve.deploy.kube.base import KubeModel, KubeObject
from cosmos3_serve.deploy.kube.pod import PodTemplate


class AuthOptions(KubeModel):
    """The operator makes a token and puts it into every pod; Ray's own ports demand it."""

    mode: Literal["token", "disabled"]


class HeadGroup(KubeModel):
    ray_start_params: Mapping[str, str]
    template: PodTemplate


class WorkerGroup(KubeModel):
    group_name: str
    replicas: int = Field(ge=0)
    min_replicas: int = Field(ge=0)
    max_replicas: int = Field(ge=1)
    ray_start_params: Mapping[str, str]
    template: PodTemplate


class ClusterConfig(KubeModel):
    ray_version: str
    auth_options: AuthOptions
    enable_in_tree_autoscaling: bool
    head_group_spec: HeadGroup
    worker_group_specs: list[WorkerGroup]


class UpgradeStrategy(KubeModel):
    type: Literal["None", "NewCluster"]


class RayServiceSpec(KubeModel):
    upgrade_strategy: UpgradeStrategy
    exclude_head_pod_from_serve_svc: bool
    serve_config_v2: str = Field(alias="serveConfigV2")
    ray_cluster_config: ClusterConfig


class RayService(KubeObject):
    api_version: Literal["ray.io/v1"] = "ray.io/v1"
    kind: Literal["RayService"] = "RayService"
    spec: RayServiceSpec


def application(
    name: str, import_path: str, args: Mapping[str, Any], deployments: list[dict[str, Any]]
) -> dict[str, Any]:
    """One entry of Serve's own configuration. No route: our ingress answers the public port itself."""
    return {
        "name": name,
        "route_prefix": None,
        "import_path": import_path,
        "args": dict(args),
        "deployments": deployments,
    }
