"""The fleet: replicas, their incarnations, and the state in which a gateway sees them at one moment."""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
    """`leaving`: it serves, and is about to be replaced."""

    incarnation: int
    state: ReplicaState
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Fleet:
    """One gateway's view of every replica at one moment; sent along when the table is asked for a place."""

    replicas: Mapping[str, ReplicaView] = field(default_factory=dict)

    def ready(self, refused: Collection[ReplicaRef] = ()) -> list[ReplicaRef]:
        """Replicas that may get a request, without those that have already refused it, ordered by id."""
        refs = (ReplicaRef(i, v.incarnation) for i, v in self.replicas.items() if v.state is ReplicaState.READY)
        return sorted(ref for ref in refs if ref not in refused)

    def homes(self, refused: Collection[ReplicaRef] = ()) -> list[ReplicaRef]:
        """Of those, the ones where a session may settle: one that is about to leave only where nobody else is ready, or
        the session would move again."""
        ready = self.ready(refused)
        return [ref for ref in ready if not self.replicas[ref.id].leaving] or ready

    def busy(self) -> bool:
        """Whether some replica serves at all: if none takes a request then, capacity is missing, not replicas."""
        return any(v.state in (ReplicaState.SATURATED, ReplicaState.READY) for v in self.replicas.values())
