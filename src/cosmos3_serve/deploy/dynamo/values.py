"""DynamoValues: what may be set on the reasoner as a Dynamo graph.

Images and versions are those that NVIDIA documents for Cosmos3 NIM 2.1.0 and publishes on nvcr.io. Our own client image
is not published: the smoke test and the benchmark need it, the deployment does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from cosmos3_serve.deploy.fields import Image, Name, Quantity, VariableName, require_above_shm
from cosmos3_serve.deploy.placement import Placement, Pods
from cosmos3_serve.deploy.trust import CaBundle
from cosmos3_serve.deploy.values import PLACEHOLDER, Values, value, words

Profile = Literal["round-robin", "session-affinity"]
PROFILES: tuple[Profile, ...] = ("round-robin", "session-affinity")

# What the NIM of the default image serves.
MODEL = "nvidia/cosmos3-nano-reasoner"
VERSION = r"^(0|[1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})$"

Levels = Annotated[tuple[Annotated[int, Field(ge=1)], ...], BeforeValidator(words), Field(min_length=1)]


class Images(Values):
    frontend: Image = value("nvcr.io/nvidia/ai-dynamo/dynamo-frontend:1.6.1", "Dynamo's frontend.")
    worker: Image = value("nvcr.io/nim/nvidia/cosmos3:2.1.0", "The Cosmos3 NIM, of workers and of the download job.")
    client: Image = value(
        f"{PLACEHOLDER}/cosmos3-client",
        "Our CPU client, of the smoke test and the benchmark alone; not published: build it (docs/containers.md).",
    )


class Cache(Values):
    claim: Name = value("shared-model-cache", "The claim that workers and download job share.")
    storage_class: str | None = value(
        f"{PLACEHOLDER}-A-READWRITEMANY-CLASS", "Storage class that several nodes may write; required for a new cache."
    )
    size: Quantity = value("200Gi", "Size of the claim.")
    mount: str = value("/opt/nim/.cache", "Where the NIM keeps its files.", pattern="^/")


class Frontend(Placement):
    runtime_version: str = value(
        "1.6.1", "Dynamo's version in the frontend's image, for the operator.", pattern=VERSION
    )
    replicas: int = value(1, "Frontends.", ge=1)
    migration_limit: int | None = value(
        None, "Times that a request may move to another worker when its own dies; Dynamo's default is none.", ge=0
    )


class Worker(Placement):
    runtime_version: str = value(
        "1.5.0",
        "Dynamo's version in the worker's image, for the operator: a NIM's tag does not say it.",
        pattern=VERSION,
    )
    replicas: int = value(8, "Workers, one GPU each.", ge=1)
    entrypoint: str = value("/opt/nim/start_server.sh", "The NIM's entrypoint.", pattern="^/")
    precision: Literal["fp8", "bf16", "nvfp4"] = value("fp8", "NIM_PRECISION.")
    cpu: Quantity = value("16", "CPUs of one worker.")
    memory: Quantity = value("96Gi", "Memory of one worker.")
    shm: Quantity = value("16Gi", "/dev/shm of one worker; it counts towards its memory.")
    allow_internal_media: bool = value(
        True,
        "Workers may fetch http:// and private addresses: the smoke and perf jobs serve their videos so. Off where "
        "strangers may ask.",
    )
    env: Mapping[VariableName, str] = value({}, "One more variable of the worker.")

    @model_validator(mode="after")
    def _sizes(self) -> Worker:
        require_above_shm(self.memory, self.shm)
        return self


class Affinity(Values):
    ttl_s: int = value(300, "Idle seconds after which a session is forgotten.", ge=1, le=31_536_000)
    mode: Literal["soft", "hard"] | None = value(
        None, "Whether a session may leave a dead or full worker; Dynamo's own default is hard."
    )


class Overlay(Values):
    image_pull_secret: Name | None = value(None, "Secret of a private registry mirror.")
    ngc_api_key: bool = value(False, "NGC_API_KEY from the Secret ngc-api-secret in the worker.")
    node_selector: Mapping[str, str] = value({}, "Label of the nodes that the workers must run on.")

    @property
    def asked(self) -> bool:
        return bool(self.image_pull_secret or self.ngc_api_key or self.node_selector)


class Download(Placement):
    command: str = value("download-to-cache", "The NIM's own tool that fills its cache.", min_length=1)
    gpus: int = value(1, "GPUs of the job: the NIM picks the profile for the GPU that it sees.", ge=0)


class Perf(Placement):
    videos: int = value(200, "Videos.", ge=1)
    questions: int = value(20, "Questions about each.", ge=1)
    output_tokens: int = value(128, "Tokens of each answer, exactly.", ge=1)
    concurrency: Levels = value((1, 2, 4, 8, 16), "Levels.")
    tokenizer: str = value("nvidia/Cosmos3-Nano", "Tokenizer that AIPerf wants: a Hub id.", min_length=1)
    results_claim: Name | None = value(None, "Claim that keeps the run's files; without it they end with the pod.")
    cpu: Quantity = value("8", "CPUs of the perf job.")
    memory: Quantity = value("16Gi", "Memory of the perf job.")


class DynamoValues(Values):
    name: Name = value("cosmos3-nano-reasoner", "First part of every name.", max_length=25)
    model: str = value(MODEL, "Served name of the model, for the workers and for those who ask them.", pattern=r"^\S+$")
    ngc_secret: Name = value("ngc-api-secret", "Secret with the key NGC_API_KEY.")
    token_secret: Name = value(
        "cosmos3-token", "Secret whose key `token` the perf jobs send, where there is one; Dynamo asks for none."
    )
    pods: Pods = Pods()
    ca_bundle: CaBundle = CaBundle()
    images: Images = Images()
    cache: Cache = Cache()
    frontend: Frontend = Frontend()
    worker: Worker = Worker()
    affinity: Affinity = Affinity()
    download: Download = Download()
    overlay: Overlay = Overlay()
    perf: Perf = Perf()

    def graph_name(self, profile: Profile) -> str:
        return f"{self.name}-agg-h200-{profile}"
