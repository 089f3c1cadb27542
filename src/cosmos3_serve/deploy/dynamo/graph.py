"""DynamoGraphDeployment `nvidia.com/v1beta1`: the frontend, and eight workers of one GPU.

The two profiles differ in their names and in the frontend's affinity flags, in nothing else (a test compares them).
"""

from __future__ import annotations

import json
from typing import Literal

from pydantic import Field

from cosmos3_serve.deploy.dynamo.values import MODEL, VERSION, DynamoValues, Profile
from cosmos3_serve.deploy.kube.base import KubeModel, KubeObject, Meta
from cosmos3_serve.deploy.kube.pod import (
    Container,
    HttpGet,
    Mount,
    PodSecurity,
    PodSpec,
    PodTemplate,
    Port,
    Probe,
    Resources,
    claim,
    env,
)
from cosmos3_serve.deploy.placement import placed
from cosmos3_serve.deploy.trust import trust_env, trust_mounts, trust_volumes
from cosmos3_serve.errors import FieldError, UsageError

PORT = 8000
GPU = "nvidia.com/gpu"
CACHE_VOLUME = "model-cache"
# The NIM runs as user 1000 and writes to the cache; a new volume belongs to root.
NIM_SECURITY = PodSecurity(
    run_as_non_root=None, fs_group=1000, fs_group_change_policy="OnRootMismatch", seccomp_profile=None
)
# A NIM's HTTP server, which answers before the model is loaded, and Dynamo's port for health and metadata. Both must be
# listed: the operator's readiness probe names `system`, and a list of ports replaces the operator's own.
NIM_PORT, NIM_LIVE, SYSTEM_PORT = 8000, "/v1/health/live", 9090
# As long as the documented `kubectl wait` for the graph.
START_S = 1200


class Component(KubeModel):
    name: str = Field(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?$", max_length=63)
    type: Literal["frontend", "worker", "prefill", "decode", "planner", "epp"]
    # The operator reads an image's tag as a Dynamo version; a NIM's tag is not one.
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
    """Components in the order that overlays patch by index: [0] the frontend, [1] the worker."""
    return DynamoGraphDeployment(
        metadata=Meta(name=values.graph_name(profile)),
        spec=GraphSpec(backend_framework="vllm", components=[_frontend(values, profile), _worker(values)]),
    )


def frontend_service(values: DynamoValues, profile: Profile) -> str:
    """Name of the Service that Dynamo's operator creates for the component `Frontend`."""
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
        runtime_version_override=values.frontend.runtime_version,
        replicas=values.frontend.replicas,
        pod_template=PodTemplate(spec=PodSpec(containers=[main], **placed(values.pods, values.frontend))),
    )


def _worker(values: DynamoValues) -> Component:
    worker = values.worker
    size = {"cpu": worker.cpu, "memory": worker.memory, GPU: "1"}
    main = Container(
        name="main",
        image=values.images.worker,
        command=[worker.entrypoint],
        env=env(**worker_variables(values)) + trust_env(values.ca_bundle),
        ports=[Port(name="nim-http", container_port=NIM_PORT), Port(name="system", container_port=SYSTEM_PORT)],
        resources=Resources(requests=size, limits={"memory": worker.memory, GPU: "1"}),
        startup_probe=_live(failures=START_S // 10),
        liveness_probe=_live(failures=3),
        volume_mounts=[Mount(name=CACHE_VOLUME, mount_path=values.cache.mount), *trust_mounts(values.ca_bundle)],
    )
    return Component(
        name="Worker",
        type="worker",
        runtime_version_override=worker.runtime_version,
        replicas=worker.replicas,
        shared_memory_size=worker.shm,
        pod_template=PodTemplate(
            spec=PodSpec(
                security_context=NIM_SECURITY,
                containers=[main],
                volumes=[claim(CACHE_VOLUME, values.cache.claim), *trust_volumes(values.ca_bundle)],
                **placed(values.pods, worker),
            )
        ),
    )


def profile_variables(values: DynamoValues) -> dict[str, str]:
    """What the NIM selects its model profile by; the download job must select the same one."""
    return {
        "NIM_MODEL_TYPE": "reasoner",
        "NIM_MODEL_VARIANT": "nano",
        # The name of the same selector in NVIDIA's Dynamo recipe and in earlier releases of the NIM.
        "NIM_MODEL_SIZE": "nano",
        "NIM_PRECISION": values.worker.precision,
        "NIM_CACHE_PATH": values.cache.mount,
    }


def worker_variables(values: DynamoValues) -> dict[str, str]:
    """
    Raises:
        UsageError: code `deploy_bad_value`: `worker.env` replaces the variable that carries `model`.
    """
    worker = values.worker
    found = {
        **profile_variables(values),
        "NIM_DYNAMO_WORKER": "true",
        # The NIM's own default is `file`: its worker would never be found by the graph's frontend.
        "NIM_DISCOVERY_BACKEND": "kubernetes",
        "DYN_REQUEST_PLANE": "tcp",
        # The frontend mounts no model cache: it fetches tokenizer and templates from the worker.
        "DYN_SELF_HOST_METADATA": "true",
        "DYN_SYSTEM_PORT": str(SYSTEM_PORT),
        **({"DYN_MM_ALLOW_INTERNAL": "1"} if worker.allow_internal_media else {}),
    }
    if values.model != MODEL:
        if "NIM_DYNAMO_ARGS" in worker.env:
            error = FieldError("worker.env.NIM_DYNAMO_ARGS", "carries the served name that `model` sets")
            raise UsageError(
                "model and worker.env.NIM_DYNAMO_ARGS are both set, and both name the model",
                code="deploy_bad_value",
                remedy="leave model out, or leave NIM_DYNAMO_ARGS out",
                errors=[error],
            )
        found["NIM_SERVED_MODEL_NAME"] = values.model
        found["NIM_DYNAMO_ARGS"] = json.dumps({"served_model_name": values.model})
    return {**found, **worker.env}


def _live(*, failures: int) -> Probe:
    return Probe(
        http_get=HttpGet(path=NIM_LIVE, port="nim-http"),
        period_seconds=10,
        timeout_seconds=3,
        failure_threshold=failures,
    )
