"""The fleet: replicas, their incarnations, and the state in which a gateway sees them at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class ReplicaState(StrEnum):
    """What may be asked of a replica."""

    STARTING = "starting"
    READY = "ready"
    SATURATED = "saturated"
    DRAINING = "draining"
    DEAD = "dead"


class ReplicaRef(NamedTuple):
    """One life of a replica: a restart keeps the id, raises the incarnation, and has empty caches."""

    id: str
    incarnation: int


class ReplicaView(NamedTuple):
    """
    Args:
        leaving: it serves, and is about to be replaced.
        full_for: it has just refused a request for so many answers; wider ones are not sent there, narrower ones are.
        examined: it failed a request, and a probe of it is due or under way; or its engine computes nothing.
    """

    incarnation: int
    state: ReplicaState
    leaving: bool = False
    full_for: int | None = None
    examined: bool = False


@dataclass(frozen=True, slots=True)
class Fleet:
    """One gateway's view of every replica at one moment; sent along when the table is asked for a place."""

    replicas: Mapping[str, ReplicaView] = field(default_factory=dict)

    def busy(self) -> bool:
        """Whether some replica serves at all: if none takes a request then, capacity is missing, not replicas."""
        return any(v.state in (ReplicaState.SATURATED, ReplicaState.READY) for v in self.replicas.values())
