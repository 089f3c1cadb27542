"""The rules of sessions: profiles, modes, outcomes, and the numbers that gateways and the table share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cosmos3_serve.errors import UsageError


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


@dataclass(frozen=True, slots=True)
class AffinityRules:
    """Numbers that every gateway and the table share.

    Args:
        ttl_s: idle seconds after the end of a session's last request until it is forgotten.
        mode: soft or hard, see `decide`.
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
