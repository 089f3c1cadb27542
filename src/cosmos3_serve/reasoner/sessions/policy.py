"""What becomes of a request whose session has a home: the one place where soft and hard differ.

| the home is                   | soft                          | hard                              |
|-------------------------------|-------------------------------|-----------------------------------|
| ready                         | STAY                          | STAY                              |
| saturated, or refused this one| SPILL (binding stays)         | BUSY (503, Retry-After)           |
| dead, draining, starting      | PLACE (moves)                 | LOST (503, Retry-After)           |
| restarted and ready           | FOLLOW (same id, cold caches) | FOLLOW                            |
| gone from the fleet           | PLACE (moves)                 | PLACE (moves)                     |
| none                          | PLACE (new)                   | PLACE (new)                       |

The same in words: docs/contract.md 9.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from cosmos3_serve.errors import UsageError
from cosmos3_serve.reasoner.fleet.replicas import Fleet, ReplicaRef, ReplicaState


class Profile(StrEnum):
    ROUND_ROBIN = "round-robin"
    SESSION_AFFINITY = "session-affinity"


class Mode(StrEnum):
    SOFT = "soft"
    HARD = "hard"


class Outcome(StrEnum):
    """What became of the session, as clients see it in `x-cosmos3-session`."""

    NEW = "new"
    HIT = "hit"
    MOVED = "moved"
    SPILLED = "spilled"
    NONE = "none"


class Course(StrEnum):
    STAY = "stay"
    FOLLOW = "follow"
    PLACE = "place"
    SPILL = "spill"
    BUSY = "busy"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class AffinityRules:
    """Numbers that every gateway and the table share.

    Args:
        ttl_s: idle seconds after the end of a session's last request until it is forgotten.
        mode: soft or hard, see the module.
        max_sessions: bindings and reservations the table may hold.
        flush_interval_s: seconds between two reports of a gateway to the table; far below the TTL.
        gateway_timeout_s: seconds of silence after which a gateway's live requests no longer count.

    Raises:
        UsageError: a number is not positive, or the TTL is shorter than eight flush intervals, with which a touch
            could arrive after the session it keeps alive.
    """

    ttl_s: float = 300.0
    mode: Mode = Mode.SOFT
    max_sessions: int = 65_536
    flush_interval_s: float = 0.5
    gateway_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if self.max_sessions < 1 or min(self.ttl_s, self.flush_interval_s, self.gateway_timeout_s) <= 0:
            raise UsageError("session TTL, number of sessions, flush interval and gateway timeout must be positive")
        if self.ttl_s < 8 * self.flush_interval_s:
            raise UsageError(
                f"session TTL {self.ttl_s:g} s is too short for a flush interval of {self.flush_interval_s:g} s",
                remedy="use a TTL of at least eight flush intervals",
            )

    @property
    def margin_s(self) -> float:
        """Seconds before expiry in which a gateway asks the table instead of its lease.

        A hit taken from a lease before the margin is reported before the table could expire the session, so that
        batching touches never shortens a TTL.
        """
        return 2 * self.flush_interval_s


def course(home: ReplicaRef | None, fleet: Fleet, *, mode: Mode, refused: Collection[ReplicaRef] = ()) -> Course:
    """What to do with one request of a session that lives at `home`; the table of this module, as code."""
    view = None if home is None else fleet.replicas.get(home.id)
    if home is None or view is None:
        return Course.PLACE
    now_there = ReplicaRef(home.id, view.incarnation)
    if now_there != home and view.state is ReplicaState.READY and now_there not in refused:
        return Course.FOLLOW
    if now_there == home and view.state in (ReplicaState.READY, ReplicaState.SATURATED):
        if view.state is ReplicaState.READY and home not in refused:
            return Course.STAY
        return Course.SPILL if mode is Mode.SOFT else Course.BUSY
    return Course.PLACE if mode is Mode.SOFT else Course.LOST
