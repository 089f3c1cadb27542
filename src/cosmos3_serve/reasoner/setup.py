"""What a gateway or a replica of the reasoner is constructed with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cosmos3_serve.settings import ReasonerSettings
from cosmos3_serve.weights.checkpoint import Weights

APP_NAME = "cosmos3_reasoner"
REPLICAS_APP_NAME = "cosmos3_reasoner_replicas"
NAMESPACE = "cosmos3"
FLEET_ACTOR = "cosmos3_reasoner_fleet"
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
class ReasonerSetup:
    """
    Args:
        port: of the public socket.
        secret: what replicas ask for on every path; known to this service's processes only.
        fleet: name of the registry's actor, in `NAMESPACE`.
    """

    settings: ReasonerSettings
    model: ServedModel
    port: int
    secret: str = field(repr=False)
    fleet: str = FLEET_ACTOR


GatewaySetup = ReasonerSetup
