"""Smoke test and benchmark: Jobs that make their videos and serve them to the workers through a Service.

One ConfigMap names the deployment to ask. Applying another profile's file points the same Jobs at another deployment,
our own service on KubeRay among them.
"""

from __future__ import annotations

from collections.abc import Mapping

from cosmos3_serve.deploy.dynamo.graph import PORT, frontend_service
from cosmos3_serve.deploy.dynamo.values import DynamoValues, Profile
from cosmos3_serve.deploy.kube.base import KubeObject, Meta, PodMeta, labels
from cosmos3_serve.deploy.kube.objects import ConfigMap, Job, JobSpec, Service, ServicePort, ServiceSpec
from cosmos3_serve.deploy.kube.pod import (
    Container,
    ContainerSecurity,
    EmptyDir,
    EnvFrom,
    Mount,
    NameRef,
    PodSecurity,
    PodSpec,
    PodTemplate,
    Port,
    Resources,
    Volume,
    claim,
    env,
    secret_env,
    shell,
)
from cosmos3_serve.deploy.placement import placed
from cosmos3_serve.deploy.trust import trust_env, trust_mounts, trust_volumes

VIDEO_PORT = 8080
SCRATCH = "/scratch"
USER = 1000
SMOKE_DEADLINE_S = 1800
PERF_DEADLINE_S = 6 * 3600


def profile_name(name: str) -> str:
    return f"{name}-perf-profile"


def perf_profile(values: DynamoValues, profile: Profile) -> ConfigMap:
    # Our client wants a token; Dynamo's frontend asks for none and ignores the header.
    none = {"COSMOS3_REASONER_TOKEN": "dynamo-asks-for-none"}
    endpoint = f"http://{frontend_service(values, profile)}:{PORT}"
    return profile_config(values.name, profile, endpoint, values.model, none)


def profile_config(name: str, profile: Profile, endpoint: str, model: str, more: Mapping[str, str]) -> ConfigMap:
    """What the Jobs read: the endpoint, and the profile that they measure."""
    data = {"PROFILE": profile, "COSMOS3_REASONER_ENDPOINT": endpoint, "MODEL": model, **more}
    return ConfigMap(metadata=Meta(name=profile_name(name), labels=labels(name, "perf")), data=data)


def smoke(values: DynamoValues) -> list[KubeObject]:
    """The Job, and the Service through which the workers fetch its video."""
    name = f"{values.name}-smoke"
    script = f"""set -eu
exec cosmos3 reasoner smoke --model "$MODEL" --video-host 0.0.0.0 --video-port {VIDEO_PORT} \\
  --video-public-url http://{name}:{VIDEO_PORT}
"""
    size = Resources(requests={"cpu": "1", "memory": "1Gi"}, limits={"memory": "2Gi"})
    return [_service(values, name), _job(values, name, script, size, SMOKE_DEADLINE_S)]


def perf(values: DynamoValues) -> list[KubeObject]:
    """The sweep of NVIDIA's recipe: distinct videos first, then every level, each with AIPerf's summary in the log."""
    name, work = f"{values.name}-perf", values.perf
    # Each run has a folder of its own. With `perf.results_claim` a second run finds videos and AIPerf in place.
    script = f"""set -eu
cosmos3 bench setup --aiperf-dir {SCRATCH}/aiperf
cosmos3 bench videos --videos-dir {SCRATCH}/videos --count {work.videos} --seconds 30 --fps 2
exec cosmos3 bench reasoner --profile "$PROFILE" --model "$MODEL" \\
  --output {SCRATCH}/runs/"$PROFILE-$(date -u +%Y%m%dT%H%M%SZ)" \\
  --videos-dir {SCRATCH}/videos --videos {work.videos} --questions {work.questions} \\
  --output-tokens {work.output_tokens} --concurrency {",".join(map(str, work.concurrency))} \\
  --video-host 0.0.0.0 --video-port {VIDEO_PORT} --video-public-url http://{name}:{VIDEO_PORT} \\
  --load aiperf --aiperf-dir {SCRATCH}/aiperf --tokenizer {work.tokenizer} --level-summaries
"""
    size = Resources(requests={"cpu": work.cpu, "memory": work.memory}, limits={"memory": work.memory})
    return [_service(values, name), _job(values, name, script, size, PERF_DEADLINE_S, keep=work.results_claim)]


def _service(values: DynamoValues, name: str) -> Service:
    return Service(
        metadata=Meta(name=name, labels=labels(values.name, "perf")),
        spec=ServiceSpec(
            selector={"app.kubernetes.io/instance": name},
            ports=[ServicePort(name="videos", port=VIDEO_PORT, target_port=VIDEO_PORT)],
        ),
    )


def _job(
    values: DynamoValues, name: str, script: str, size: Resources, deadline_s: int, *, keep: str | None = None
) -> Job:
    named = labels(values.name, "perf") | {"app.kubernetes.io/instance": name}
    main = Container(
        name="client",
        image=values.images.client,
        command=shell(script),
        env_from=[EnvFrom(config_map_ref=NameRef(name=profile_name(values.name)))],
        # A Secret, where there is one, wins over the ConfigMap.
        env=[
            *env(HOME=SCRATCH, TMPDIR=SCRATCH),
            secret_env("COSMOS3_REASONER_TOKEN", values.token_secret, "token", optional=True),
            *trust_env(values.ca_bundle),
        ],
        ports=[Port(name="videos", container_port=VIDEO_PORT)],
        resources=size,
        security_context=ContainerSecurity(),
        volume_mounts=[Mount(name="scratch", mount_path=SCRATCH), *trust_mounts(values.ca_bundle)],
    )
    scratch = claim("scratch", keep) if keep else Volume(name="scratch", empty_dir=EmptyDir())
    return Job(
        metadata=Meta(name=name, labels=labels(values.name, "perf")),
        spec=JobSpec(
            backoff_limit=0,  # a repeat would hide what failed, and would find warm caches
            active_deadline_seconds=deadline_s,
            template=PodTemplate(
                metadata=PodMeta(labels=named),
                spec=PodSpec(
                    restart_policy="Never",
                    automount_service_account_token=False,
                    security_context=PodSecurity(run_as_user=USER, run_as_group=USER, fs_group=USER),
                    containers=[main],
                    volumes=[scratch, *trust_volumes(values.ca_bundle)],
                    **placed(values.pods, values.perf),
                ),
            ),
        ),
    )
