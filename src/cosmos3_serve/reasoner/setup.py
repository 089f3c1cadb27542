"""What a gateway or a replica of the reasoner is constructed with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cosmos3_serve.settings import ReasonerSettings
from cosmos3_serve.weights.checkpoint import Weights

NAMESPACE = "cosmos3"
MODEL_NAME = "nvidia/cosmos3-nano-reasoner"
SECRET_HEADER = "x-cosmos3-cluster-secret"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model as clients see it, and where its files are on each machine.

    Args:
        verified: every byte of the checkpoint was checked against the Hub's hashes.
    """

    checkpoint: str
    revision: str
    digest: str
    weights: Weights
    path: Path
    max_model_len: int
    name: str = MODEL_NAME
    verified: bool = False


@dataclass(frozen=True, slots=True)
class Names:
    """What a service is called on its cluster.

    Args:
        gateways, replicas: Serve's applications.
        registry: the actor, in `NAMESPACE`.
    """

    gateways: str
    replicas: str
    registry: str


def names_of(service: str = "") -> Names:
    """
    Args:
        service: `ReasonerSettings.name`; has no underscore, so that no two services share a name.
    """
    suffix = f"-{service}" if service else ""
    return Names(f"cosmos3_reasoner{suffix}", f"cosmos3_reasoner_replicas{suffix}", f"cosmos3_reasoner_fleet{suffix}")


@dataclass(frozen=True, slots=True)
class ReasonerSetup:
    """
    Args:
        port: of the public socket.
        secret: what replicas ask for on every path; known to this service's processes only.
    """

    settings: ReasonerSettings
    model: ServedModel
    port: int
    secret: str = field(repr=False)

    @property
    def names(self) -> Names:
        return names_of(self.settings.name)


GatewaySetup = ReasonerSetup
