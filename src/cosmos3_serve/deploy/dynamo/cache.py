"""The model cache: one claim that several nodes mount, and the Job that fills it before workers start."""

from __future__ import annotations

from cosmos3_serve.deploy.dynamo.graph import CACHE_VOLUME, GPU, NIM_SECURITY, profile_variables
from cosmos3_serve.deploy.dynamo.values import DynamoValues
from cosmos3_serve.deploy.kube.base import Meta, PodMeta, labels
from cosmos3_serve.deploy.kube.objects import Claim, Job, JobSpec, claim_object
from cosmos3_serve.deploy.kube.pod import (
    Container,
    Mount,
    PodSpec,
    PodTemplate,
    Resources,
    claim,
    env,
    secret_env,
)
from cosmos3_serve.deploy.placement import placed
from cosmos3_serve.deploy.trust import trust_env, trust_mounts, trust_volumes

DEADLINE_S = 3600  # as long as the documented `kubectl wait`


def cache_claim(values: DynamoValues) -> Claim:
    cache = values.cache
    return claim_object(
        cache.claim,
        size=cache.size,
        mode="ReadWriteMany",
        storage_class=cache.storage_class,
        labels=labels(values.name, "model-cache"),
    )


def download_job(values: DynamoValues) -> Job:
    """The workers' own image and variables, so that the NIM selects the same profile. The key stays in its Secret."""
    gpus = {GPU: str(values.download.gpus)} if values.download.gpus else {}
    named = labels(values.name, "model-download")
    main = Container(
        name="download",
        image=values.images.worker,
        command=[values.download.command],
        env=[
            secret_env("NGC_API_KEY", values.ngc_secret, "NGC_API_KEY"),
            *env(**profile_variables(values)),
            *trust_env(values.ca_bundle),
        ],
        resources=Resources(requests={"cpu": "4", "memory": "16Gi", **gpus}, limits={"memory": "32Gi", **gpus}),
        volume_mounts=[Mount(name=CACHE_VOLUME, mount_path=values.cache.mount), *trust_mounts(values.ca_bundle)],
    )
    return Job(
        metadata=Meta(name=f"{values.name}-model-download", labels=named),
        spec=JobSpec(
            backoff_limit=3,
            active_deadline_seconds=DEADLINE_S,
            template=PodTemplate(
                metadata=PodMeta(labels=named),
                spec=PodSpec(
                    restart_policy="OnFailure",
                    automount_service_account_token=False,
                    security_context=NIM_SECURITY,
                    containers=[main],
                    volumes=[claim(CACHE_VOLUME, values.cache.claim), *trust_volumes(values.ca_bundle)],
                    # The NIM picks a profile for the GPU that it sees: one of the workers' nodes.
                    **placed(values.pods, values.worker, values.download),
                ),
            ),
        ),
    )
