"""The pods of a RayService: the head, which runs no replica, and the workers, which answer the public port.

Every pod has the same environment and the same volumes: Serve builds the applications on the head, with the settings,
secrets and caches that the replicas will have.
"""

from __future__ import annotations

from cosmos3_serve.deploy.kube.base import PodMeta
from cosmos3_serve.deploy.kube.placement import Toleration
from cosmos3_serve.deploy.kube.pod import (
    Container,
    ContainerSecurity,
    EmptyDir,
    EnvVar,
    Exec,
    Hook,
    HttpGet,
    Lifecycle,
    Mount,
    PodSecurity,
    PodSpec,
    PodTemplate,
    Port,
    Probe,
    Resources,
    SecretSource,
    Volume,
    claim,
    env,
    exec_probe,
    secret_env,
)
from cosmos3_serve.deploy.kuberay.applications import OUTPUTS, PORT
from cosmos3_serve.deploy.kuberay.values import KuberayValues, Service, account_of
from cosmos3_serve.deploy.placement import placed
from cosmos3_serve.deploy.trust import trust_env, trust_mounts, trust_volumes

USER = 1000
GPU = "nvidia.com/gpu"
TOKENS = "/run/cosmos3-token"
MEDIA = "/var/lib/cosmos3-media"
# The port that KubeRay's operator makes the service's own Service for.
SERVE = "serve"
INSTANCE, ROLE = "cosmos3-serve/instance", "cosmos3-serve/role"
TOKEN_FILE = {"generator": "NPA_COSMOS3_RAY_TOKEN_FILE", "reasoner": "COSMOS3_REASONER_TOKEN_FILE"}
STORAGE_KEYS = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_SESSION_TOKEN")
# Of these a storage may do without.
SPARE_KEYS = ("AWS_REGION", "AWS_SESSION_TOKEN")
# Ray's agent answers here for its node, on the head for the control plane too, and asks for no token.
AGENT_PORT, AGENT_HEALTH = 52365, "/api/healthz"
# Weights may be fetched while the applications are built, before anything answers.
START_S = 2 * 3600
# The hook's own start and the last answers, beside the drain itself.
LEAVE_S, AFTER_S = 30, 30
# Where tools look for weights below the cache; a test compares them with the service's own table.
CACHE_FAMILY = {
    "HF_HOME": "huggingface",
    "HF_HUB_CACHE": "huggingface/hub",
    "HUGGINGFACE_HUB_CACHE": "huggingface/hub",
    "TRANSFORMERS_CACHE": "huggingface/hub",
    "HF_DATASETS_CACHE": "huggingface/datasets",
    "HF_XET_CACHE": "huggingface/xet",
    "TORCH_HOME": "torch",
    "COSMOS_HF_CACHE": "huggingface",
    "NLTK_DATA": "nltk",
    "NPA_COSMOS3_CACHE": "cosmos3",
    "COSMOS_DOWNLOAD_CACHE_DIR": "cosmos3/downloads",
}


def grace_s(drain_timeout_s: float) -> int:
    """Seconds from the pod's end being asked for to its processes being killed: the hook drains within them."""
    return int(drain_timeout_s) + LEAVE_S + AFTER_S


def labels(name: str, role: str) -> dict[str, str]:
    """Ours: the operator writes its own `app.kubernetes.io/…` on its pods."""
    return {INSTANCE: name, ROLE: role}


def head(service: Service, name: str, values: KuberayValues, drain_timeout_s: float) -> PodTemplate:
    size = {"cpu": values.head.cpu, "memory": values.head.memory}
    container = Container(
        name="ray-head",
        image=values.images.service,
        env=_env(service, values),
        ports=[
            Port(name="gcs", container_port=6379),
            Port(name="dashboard", container_port=8265),
            # Nothing listens on it here; without it the operator, who reads the head's ports, makes no Service.
            Port(name=SERVE, container_port=PORT),
        ],
        resources=Resources(requests=size, limits={"memory": values.head.memory}),
        # As operators from 1.6 on write them. Earlier ones write a command that needs wget, which our images lack.
        readiness_probe=_agent_probe(failures=10),
        liveness_probe=_agent_probe(failures=60),
        lifecycle=_leave(service, drain_timeout_s, ["--fleet"] if service == "reasoner" else []),
        security_context=ContainerSecurity(),
        volume_mounts=_mounts(service, values),
    )
    return _template(service, name, "head", values, container, drain_timeout_s)


def worker(service: Service, name: str, values: KuberayValues, drain_timeout_s: float) -> PodTemplate:
    gpus = {GPU: str(values.worker.gpus)} if values.worker.gpus else {}
    size = {"cpu": values.worker.cpu, "memory": values.worker.memory, **gpus}
    period = 10
    container = Container(
        name="ray-worker",
        image=values.images.service,
        env=_env(service, values),
        ports=[Port(name=SERVE, container_port=PORT)],
        resources=Resources(requests=size, limits={"memory": values.worker.memory, **gpus}),
        startup_probe=exec_probe(_probe(service, "/health"), period=period, timeout=10, failures=START_S // period),
        readiness_probe=exec_probe(_probe(service, "/ready"), period=period, timeout=10, failures=3),
        # Serve replaces a dead ingress by itself within a minute; only what stays away for five ends the pod.
        liveness_probe=exec_probe(_probe(service, "/health"), period=30, timeout=10, failures=10),
        lifecycle=_leave(service, drain_timeout_s, []),
        security_context=ContainerSecurity(),
        volume_mounts=_mounts(service, values),
    )
    return _template(service, name, "worker", values, container, drain_timeout_s)


def _template(
    service: Service, name: str, role: str, values: KuberayValues, container: Container, drain_timeout_s: float
) -> PodTemplate:
    on_gpu = role == "worker"
    where = placed(values.pods, values.worker if on_gpu else values.head)
    if on_gpu and values.worker.gpu_taint and values.worker.gpus:
        where["tolerations"] = [*(where["tolerations"] or []), Toleration(key=GPU, effect="NoSchedule")]
    return PodTemplate(
        metadata=PodMeta(labels=labels(name, role)),
        spec=PodSpec(
            # Ray's autoscaler, beside the head, asks Kubernetes for pods; nothing else here does.
            automount_service_account_token=role == "head" and values.autoscaling.enabled,
            termination_grace_period_seconds=grace_s(drain_timeout_s),
            service_account_name=account_of(name, values),
            **where,
            security_context=PodSecurity(
                run_as_user=USER, run_as_group=USER, fs_group=USER, fs_group_change_policy="OnRootMismatch"
            ),
            containers=[container],
            volumes=_volumes(service, values, (values.worker if on_gpu else values.head).shm),
        ),
    )


def _env(service: Service, values: KuberayValues) -> list[EnvVar]:
    cache = values.cache.mount
    fixed = {
        TOKEN_FILE[service]: f"{TOKENS}/tokens",
        "NPA_MODEL_CACHE_DIR": cache,
        **{name: f"{cache}/{folder}" for name, folder in CACHE_FAMILY.items()},
        # Ray keeps its workers' words in files of the pod; ours go to the container's log.
        "COSMOS3_LOG_TARGET": "/proc/1/fd/2",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",
        "RAY_SERVE_ENABLE_HA_PROXY": "0",
        # Ray starts its workers at nice 15; here they are the service.
        "RAY_worker_niceness": "0",
    }
    if service == "reasoner":
        # On the pod's own disk: the claim is a network file system, where the store's locks do not work.
        fixed["COSMOS3_REASONER_STORE_DIR"] = MEDIA
    secret = [secret_env("HF_TOKEN", values.secrets.hub, "HF_TOKEN", optional=True)]
    return (
        env(**{**fixed, **values.worker.env})
        + secret
        + storage_env(values, optional=True)
        + trust_env(values.ca_bundle)
    )


def storage_env(values: KuberayValues, *, optional: bool) -> list[EnvVar]:
    """Where the object storage is and who asks.

    Args:
        optional: whether a pod may start without endpoint and keys; with a ServiceAccount's web identity it may.
    """
    said = {"AWS_ENDPOINT_URL": values.storage.endpoint, "AWS_REGION": values.storage.region}
    by_identity = bool(values.service_account.name or values.service_account.annotations)
    found = []
    for key in STORAGE_KEYS:
        if said.get(key):
            found += env(**{key: said[key]})
        else:
            spare = optional or key in SPARE_KEYS or (by_identity and key != "AWS_ENDPOINT_URL")
            found.append(secret_env(key, values.secrets.storage, key, optional=spare or None))
    return found


def _mounts(service: Service, values: KuberayValues) -> list[Mount]:
    found = [
        Mount(name="model-cache", mount_path=values.cache.mount),
        Mount(name="token", mount_path=TOKENS, read_only=True),
        Mount(name="shm", mount_path="/dev/shm"),
    ]
    found += trust_mounts(values.ca_bundle)
    if service == "generator":
        return [Mount(name="outputs", mount_path=OUTPUTS), *found]
    return [Mount(name="media", mount_path=MEDIA), *found]


def _volumes(service: Service, values: KuberayValues, shm: str) -> list[Volume]:
    found = [
        claim("model-cache", values.cache.claim),
        Volume(name="token", secret=SecretSource(secret_name=values.secrets.token, default_mode=0o440)),
        Volume(name="shm", empty_dir=EmptyDir(medium="Memory", size_limit=shm)),
        *trust_volumes(values.ca_bundle),
    ]
    if service == "generator":
        return [claim("outputs", values.outputs.claim), *found]
    return [Volume(name="media", empty_dir=EmptyDir(size_limit=values.media)), *found]


def _agent_probe(*, failures: int) -> Probe:
    return Probe(
        http_get=HttpGet(path=AGENT_HEALTH, port=AGENT_PORT),
        initial_delay_seconds=10,
        period_seconds=10,
        timeout_seconds=5,
        failure_threshold=failures,
    )


def _probe(service: Service, path: str) -> list[str]:
    """Asks with the service's own token, which no manifest may hold: an exec probe reads the mounted file."""
    return ["cosmos3-probe", service, "--path", path, "--port", str(PORT), "--timeout", "8"]


def _leave(service: Service, drain_timeout_s: float, more: list[str]) -> Lifecycle:
    seconds = str(int(drain_timeout_s) + LEAVE_S)
    command = ["python", "-m", f"cosmos3_serve.{service}.leave", "--timeout", seconds, *more]
    return Lifecycle(pre_stop=Hook(exec=Exec(command=command)))
