"""DynamoGraphDeployment `nvidia.com/v1beta1`: the frontend, and eight workers of one GPU.

Source: reasoner spec, Kubernetes; the CRD's shape in docs of the project's specification. The two profiles differ in
their names and in the frontend's affinity flags, in nothing else (a test compares them).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cosmos3_serve.deploy.dynamo.values import DynamoValues, Profile
from cosmos3_serve.deploy.kube.base import KubeModel, KubeObject, Meta
from cosmos3_serve.deploy.kube.pod import (
    Container,
    Mount,
    PodSecurity,
    PodSpec,
    PodTemplate,
    Port,
    Resources,
    claim,
    env,
)

PORT = 8000
GPU = "nvidia.com/gpu"
CACHE_VOLUME = "model-cache"
# The NIM runs as user 1000 and writes the cache; a new volume belongs to root.
NIM_SECURITY = PodSecurity(
    run_as_non_root=None, fs_group=1000, fs_group_change_policy="OnRootMismatch", seccomp_profile=None
)
VERSION = r"^(0|[1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})$"


class Component(KubeModel):
    name: str = Field(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?$", max_length=63)
    type: Literal["frontend", "worker", "prefill", "decode", "planner", "epp"]
    # An image tag that is no version of Dynamo (a NIM's is not) must not be read as one.
    runtime_version_override: str = Field(pattern=VERSION)
    replicas: int = Field(ge=0)
    shared_memory_size: str | None = None
    pod_template: PodTemplate


class GraphSpec(KubeModel):
    backend_framework: Literal["vllm", "sglang", "trtllm"]
    components: list[Component] = Field(min_length=1, max_length=25)


class DynamoGraphDeployment(KubeObject):
    api_version: Literal["nvidia.com/v1beta1"] = "nvidia.com/v1beta1"
    kind: Literal["DynamoGraphDeployment"] = "DynamoGraphDeployment"
    spec: GraphSpec


def graph(values: DynamoValues, profile: Profile) -> DynamoGraphDeployment:
    """Components in the order that the seed's overlay counts on: [0] the frontend, [1] the worker."""
    return DynamoGraphDeployment(
        metadata=Meta(name=values.graph_name(profile)),
        spec=GraphSpec(backend_framework="vllm", components=[_frontend(values, profile), _worker(values)]),
    )


def frontend_service(values: DynamoValues, profile: Profile) -> str:
    """Name of the Service that Dynamo's operator makes for the component `Frontend`."""
    return f"{values.graph_name(profile)}-frontend"


def _frontend(values: DynamoValues, profile: Profile) -> Component:
    args = ["--http-port", str(PORT), "--router-mode", "round-robin"]
    if profile == "session-affinity":
        args += ["--router-session-affinity-ttl-secs", str(values.affinity.ttl_s)]
        if values.affinity.mode is not None:
            args += ["--router-session-affinity-mode", values.affinity.mode]
    if values.frontend.migration_limit is not None:
        args += ["--migration-limit", str(values.frontend.migration_limit)]
    main = Container(
        name="main",
        image=values.images.frontend,
        command=["python3", "-m", "dynamo.frontend"],
        args=args,
        ports=[Port(name="http", container_port=PORT)],
        resources=Resources(requests={"cpu": "4", "memory": "8Gi"}, limits={"memory": "16Gi"}),
    )
    return Component(
        name="Frontend",
        type="frontend",
        runtime_version_override=values.dynamo_version,
        replicas=values.frontend.replicas,
        pod_template=PodTemplate(spec=PodSpec(containers=[main])),
    )


def _worker(values: DynamoValues) -> Component:
    worker = values.worker
    size = {"cpu": worker.cpu, "memory": worker.memory, GPU: "1"}
    variables = {
        "NIM_MODEL_TYPE": "reasoner",
        "NIM_MODEL_SIZE": "nano",
        "NIM_PRECISION": worker.precision,
        "NIM_DYNAMO_WORKER": "true",
        "NIM_CACHE_PATH": values.cache.mount,
        **({"DYN_MM_ALLOW_INTERNAL": "1"} if worker.allow_internal_media else {}),
    }
    main = Container(
        name="main",
        image=values.images.worker,
        command=[worker.entrypoint],
        env=env(**{**variables, **worker.env}),
        resources=Resources(requests=size, limits={"memory": worker.memory, GPU: "1"}),
        volume_mounts=[Mount(name=CACHE_VOLUME, mount_path=values.cache.mount)],
    )
    return Component(
        name="Worker",
        type="worker",
        runtime_version_override=values.dynamo_version,
        replicas=worker.replicas,
        shared_memory_size=worker.shm,
        pod_template=PodTemplate(
            spec=PodSpec(
                security_context=NIM_SECURITY, containers=[main], volumes=[claim(CACHE_VOLUME, values.cache.claim)]
            )
        ),
    )
