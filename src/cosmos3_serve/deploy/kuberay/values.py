"""KuberayValues: what may be set on a RayService of the generator or of the reasoner, and on the batch workflow."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from cosmos3_serve.contract.wire import DIFFUSERS_REVISION, FRAMEWORK_REVISION
from cosmos3_serve.deploy.kube.base import NAME, QUANTITY
from cosmos3_serve.deploy.values import PLACEHOLDER, Values, value, words

Service = Literal["generator", "reasoner"]
SERVICES: tuple[Service, ...] = ("generator", "reasoner")

Quantity = Annotated[str, StringConstraints(pattern=QUANTITY)]
Image = Annotated[str, StringConstraints(min_length=1, pattern=r"^\S+$")]
Name = Annotated[str, StringConstraints(pattern=NAME, max_length=63)]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


def _network(text: str) -> str:
    """As Kubernetes takes it: an address and a prefix, no bits behind the prefix. Raises ValueError."""
    return str(ipaddress.ip_network(text))


Cidr = Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F.:]+/[0-9]{1,3}$"), AfterValidator(_network)]
Cidrs = Annotated[tuple[Cidr, ...], BeforeValidator(words)]
Port = Annotated[int, Field(ge=1, le=65535)]
Ports = Annotated[tuple[Port, ...], BeforeValidator(words)]


class Images(Values):
    service: Image = value(f"{PLACEHOLDER}/cosmos3-service@sha256:…", "Image of the service, by digest; required.")
    client: Image = value(f"{PLACEHOLDER}/cosmos3-client@sha256:…", "Our CPU client, of the batch workflow; required.")


class Cache(Values):
    claim: Name = value("npa-model-cache", "The claim of weights, shared by all pods.")
    storage_class: str | None = value(
        f"{PLACEHOLDER}-A-READWRITEMANY-CLASS", "Storage class that several nodes may write; required for a new claim."
    )
    size: Quantity = value("300Gi", "Size of the claim.")
    mount: str = value("/opt/npa-model-cache", "Where it is mounted.", pattern="^/")


class Outputs(Values):
    claim: Name = value("cosmos3-outputs", "The claim of the generator's output root, shared by all pods.")
    storage_class: str | None = value(
        f"{PLACEHOLDER}-A-READWRITEMANY-CLASS", "Storage class that several nodes may write; required for a new claim."
    )
    size: Quantity = value("500Gi", "Size of the claim.")


class Secrets(Values):
    token: Name = value(
        "cosmos3-token", "Secret with the key `tokens`: one name:token a line; read again when it changes."
    )
    hub: Name = value("cosmos3-hub", "Secret with the key HF_TOKEN; may be missing where nothing gated is fetched.")
    storage: Name = value(
        "cosmos3-s3", "Secret with AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY; may be missing."
    )


class Head(Values):
    cpu: Quantity = value("4", "CPUs of the head; it runs no replica.")
    memory: Quantity = value("16Gi", "Memory of the head.")


class Worker(Values):
    replicas: int = value(1, "Worker pods; the generator has one.", ge=1)
    gpus: int = value(1, "GPUs of one pod; the reasoner runs a replica on each.", ge=0)
    cpu: Quantity = value("16", "CPUs of one pod.")
    memory: Quantity = value("96Gi", "Memory of one pod.")
    shm: Quantity = value("16Gi", "/dev/shm of one pod.")
    node_selector: Mapping[str, str] = value({}, "Label of the nodes that workers must run on.")
    gpu_taint: bool = value(True, "Tolerate the taint nvidia.com/gpu.")
    env: Mapping[VariableName, str] = value({}, "One more variable of head and workers.")


class Autoscaling(Values):
    enabled: bool = value(
        False, "Let Ray's autoscaler add and remove worker pods; network.private_cidrs must then hold the API server."
    )
    min_replicas: int = value(0, "Fewest worker pods.", ge=0)
    max_replicas: int = value(1, "Most worker pods.", ge=1)


class Network(Values):
    client_labels: Mapping[str, str] = value(
        {}, "Label of the pods of this namespace that may ask the service; none: every pod of the namespace."
    )
    client_namespace: Name | None = value(None, "One more namespace whose pods may ask the service.")
    operator_namespace: Name = value("kuberay-system", "Where KubeRay's operator runs: it asks the head.")
    dns_namespace: Name = value("kube-system", "Where the cluster's DNS runs.")
    # Decided: any public host on 443. A NetworkPolicy knows addresses alone, and those of the Hub, its file servers and
    # an object storage change without notice: a narrower default would break the start somewhere, some day.
    egress_cidrs: Cidrs = value(
        ("0.0.0.0/0",),
        "Addresses outside the cluster that may be asked, on network.egress_ports alone. Default: every public one, "
        "since Hub and storage have names, not fixed addresses; name theirs where you know them.",
    )
    egress_except: Cidrs = value(
        ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"),
        "Addresses within these that may not: private ones and the cloud's metadata.",
    )
    private_cidrs: Cidrs = value((), "Private addresses that may be asked all the same, such as an object storage.")
    egress_ports: Ports = value((443,), "Ports that may be asked outside.")


class Disruption(Values):
    max_unavailable: int = value(
        0,
        "Worker pods that a node's drain may take at once, of the most that there may be; 0: an operator ends the "
        "service first. The head is never taken.",
        ge=0,
    )


class Batch(Values):
    name: Name = value("cosmos3-ray-batch", "Name of the workflow's objects.", max_length=40)
    input_uri: str = value(f"s3://{PLACEHOLDER}/batch.json", "The batch; required.", pattern="^s3://")
    output_uri: str = value(f"s3://{PLACEHOLDER}/outputs/", "Where it is published; required.", pattern="^s3://.*/$")
    endpoint: str = value("", "The ready service; default: the rendered one, in this namespace.")
    expected_revision: str = value("", "Framework revision that the service must report; default: of the engine.")
    timeout_s: int = value(1800, "Seconds for the whole submission.", ge=1, le=604_800)
    attempts: int = value(6, "Times that a pod is started again; each resumes.", ge=0)
    schedule: str = value("0 3 * * *", "Of the CronJob, in cron's five fields.", pattern=r"^\S+( \S+){4}$")
    token_key: Name = value("token", "Key of the token's Secret that holds one bearer token alone.")
    journal_size: Quantity = value("20Gi", "Claim of the journal and of artifacts on their way.")
    spool_bytes: int = value(8 * 1024**3, "Most bytes of artifacts on that claim at once.", ge=1024**2)


class KuberayValues(Values):
    name: Name | None = value(None, "Name of the RayService; default: cosmos3-generator, cosmos3-nano-reasoner.")
    ray_version: str = value("2.60.0", "Ray in the image.", pattern=r"^\d+\.\d+\.\d+$")
    upgrade: Literal["None", "NewCluster"] = value(
        "None", "What a change of the cluster does: NewCluster starts a second one first, which needs twice the GPUs."
    )
    images: Images = Images()
    cache: Cache = Cache()
    outputs: Outputs = Outputs()
    secrets: Secrets = Secrets()
    head: Head = Head()
    worker: Worker = Worker()
    autoscaling: Autoscaling = Autoscaling()
    network: Network = Network()
    disruption: Disruption = Disruption()
    settings: Mapping[VariableName, Any] = value(
        {}, "A field of the service's own settings, such as settings.max_batch_size=8 (`cosmos3 settings`)."
    )
    batch: Batch = Batch()


def revision_of(engine: str) -> str:
    """What a client must be told to expect of an engine."""
    return FRAMEWORK_REVISION if engine == "framework" else DIFFUSERS_REVISION
