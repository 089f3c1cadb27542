"""KuberayValues: what may be set on a RayService of the generator or of the reasoner, and on the batch workflow."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from cosmos3_serve.contract.wire import DIFFUSERS_REVISION, FRAMEWORK_REVISION
from cosmos3_serve.deploy.fields import Image, Name, Names, Quantity, VariableName, require_above_shm
from cosmos3_serve.deploy.placement import Placement, Pods
from cosmos3_serve.deploy.trust import CaBundle
from cosmos3_serve.deploy.values import PLACEHOLDER, Values, value, words

Service = Literal["generator", "reasoner"]
SERVICES: tuple[Service, ...] = ("generator", "reasoner")


def _network(text: str) -> str:
    """As Kubernetes takes it: an address and a prefix, no bits behind the prefix. Raises ValueError."""
    return str(ipaddress.ip_network(text))


Cidr = Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F.:]+/[0-9]{1,3}$"), AfterValidator(_network)]
Cidrs = Annotated[tuple[Cidr, ...], BeforeValidator(words)]
Port = Annotated[int, Field(ge=1, le=65535)]
Ports = Annotated[tuple[Port, ...], BeforeValidator(words)]


def _protocol(port: object) -> str:
    """A port with its protocol; TCP where none is named. Raises ValueError."""
    number, _, protocol = str(port).partition("/")
    if not (number.isascii() and number.isdigit() and 0 < int(number[:6]) < 65536):
        raise ValueError(f"{port!r} is not a port from 1 to 65535, or one with /TCP or /UDP")
    if protocol.upper() not in ("", "TCP", "UDP"):
        raise ValueError(f"{port!r}: the protocol is TCP or UDP")
    return f"{number}/{protocol.upper() or 'TCP'}"


ProtocolPorts = Annotated[tuple[Annotated[str, BeforeValidator(_protocol)], ...], BeforeValidator(words)]


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
        "cosmos3-s3",
        "Secret with AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY; where they are needed, AWS_REGION and "
        "AWS_SESSION_TOKEN; may be missing.",
    )


class Storage(Values):
    endpoint: str = value("", "Endpoint of the object storage; default: AWS_ENDPOINT_URL of secrets.storage.")
    region: str = value("", "Its region; default: AWS_REGION of secrets.storage, else us-east-1.")


class Account(Values):
    name: Name | None = value(None, "ServiceAccount of every pod; default: the namespace's own.")
    annotations: Mapping[str, str] = value(
        {},
        "Annotation of the ServiceAccount, which is rendered then, such as eks.amazonaws.com/role-arn: pods reach the "
        "object storage by web identity, without keys in a Secret.",
    )


class Head(Placement):
    cpu: Quantity = value("4", "CPUs of the head; it runs no replica.")
    memory: Quantity = value("16Gi", "Memory of the head.")
    shm: Quantity = value("4Gi", "/dev/shm of the head; it counts towards its memory.")

    @model_validator(mode="after")
    def _sizes(self) -> Head:
        require_above_shm(self.memory, self.shm)
        return self


class Worker(Placement):
    replicas: int = value(1, "Worker pods; the generator has one.", ge=1)
    gpus: int = value(1, "GPUs of one pod; the reasoner runs a replica on each.", ge=0)
    cpu: Quantity = value("16", "CPUs of one pod.")
    memory: Quantity = value("96Gi", "Memory of one pod.")
    shm: Quantity = value("16Gi", "/dev/shm of one pod; it counts towards its memory.")
    gpu_taint: bool = value(True, "Tolerate the taint nvidia.com/gpu.")
    env: Mapping[VariableName, str] = value({}, "One more variable of head and workers.")

    @model_validator(mode="after")
    def _sizes(self) -> Worker:
        require_above_shm(self.memory, self.shm)
        return self


class Autoscaling(Values):
    enabled: bool = value(
        False,
        "Let Ray's autoscaler add and remove worker pods; network.private_cidrs must then hold the API server, and "
        "network.egress_ports its port.",
    )
    min_replicas: int = value(1, "Fewest worker pods; the reasoner's replicas are a range then, one on each GPU.", ge=0)
    max_replicas: int = value(1, "Most worker pods.", ge=1)


class Network(Values):
    client_labels: Mapping[str, str] = value(
        {}, "Label of the pods of this namespace that may ask the service; none: every pod of the namespace."
    )
    client_namespace: Name | None = value(None, "One more namespace whose pods may ask the service.")
    operator_namespace: Name = value("kuberay-system", "Where KubeRay's operator runs: it asks the head.")
    dns_namespaces: Names = value(("kube-system", "openshift-dns"), "Where the cluster's DNS may run.")
    dns_ports: Ports = value((53, 5353), "Ports of its pods, over UDP and TCP; OpenShift's listen on 5353.")
    # A node's DNS cache answers at the DNS Service's own address or at a link-local one, on the host's network, which
    # no selector of pods matches. Neither address is the same in every cluster.
    dns_cidrs: Cidrs = value(
        ("0.0.0.0/0", "::/0"),
        "Addresses whose port 53 may be asked, for a DNS cache on the node; name its address where you know it.",
    )
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
    egress_ports: ProtocolPorts = value(("443/TCP",), "Ports that may be asked outside: 443, 9000/TCP, 443/UDP.")


class Disruption(Values):
    max_unavailable: int = value(
        1,
        "Worker pods that a node's drain may take at once, of the most that there may be; each drains first. 0: none, "
        "an operator ends the service before.",
        ge=0,
    )
    hold_head: bool = value(False, "Keep a node's drain from taking the head, whose end is the service's.")


class Ingress(Values):
    host: str = value(
        f"{PLACEHOLDER}-A-HOST.example", "Host name that callers outside the cluster use.", pattern=r"^[-A-Za-z0-9.]+$"
    )
    class_name: Name | None = value(None, "IngressClass; default: the cluster's own.")
    tls_secret: Name | None = value(None, "Secret with the host's certificate (kubernetes.io/tls); default: NAME-tls.")
    annotations: Mapping[str, str] = value(
        {}, "Annotation for the controller: the longest answer and the largest body that it must let through."
    )
    controller_namespace: Name | None = value(
        None, "Where the controller runs: the network policy lets it ask the service. Without it nothing outside can."
    )


class Batch(Placement):
    name: Name = value("cosmos3-ray-batch", "Name of the workflow's objects.", max_length=40)
    input_uri: str = value(
        f"s3://{PLACEHOLDER}/batch.json", "A batch, or a queue's prefix/ or .jsonl; required.", pattern="^s3://"
    )
    output_uri: str = value(f"s3://{PLACEHOLDER}/outputs/", "Where it is published; required.", pattern="^s3://.*/$")
    endpoint: str = value("", "The ready service; default: the rendered one, in this namespace.")
    expected_revision: str = value("", "Framework revision that the service must report; default: of the engine.")
    timeout_s: int | None = value(
        None, "Seconds for the whole submission, or for one attempt at a queue's part; default: from the samples.",
        ge=1, le=604_800,
    )  # fmt: skip
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
    pods: Pods = Pods()
    images: Images = Images()
    cache: Cache = Cache()
    outputs: Outputs = Outputs()
    media: Quantity = value("48Gi", "Disk of a reasoner pod for its media: above twice settings.store_bytes.")
    secrets: Secrets = Secrets()
    storage: Storage = Storage()
    service_account: Account = Account()
    ca_bundle: CaBundle = CaBundle()
    head: Head = Head()
    worker: Worker = Worker()
    autoscaling: Autoscaling = Autoscaling()
    network: Network = Network()
    ingress: Ingress = Ingress()
    disruption: Disruption = Disruption()
    settings: Mapping[VariableName, Any] = value(
        {}, "A field of the service's own settings, such as settings.max_batch_size=8 (`cosmos3 settings`)."
    )
    batch: Batch = Batch()


def revision_of(engine: str) -> str:
    """What a client must be told to expect of an engine."""
    return FRAMEWORK_REVISION if engine == "framework" else DIFFUSERS_REVISION


def account_of(name: str, values: KuberayValues) -> str | None:
    """The ServiceAccount of every pod of `name`; one that is rendered has the service's name unless it has its own."""
    account = values.service_account
    return account.name or (f"{name}-pods" if account.annotations else None)
