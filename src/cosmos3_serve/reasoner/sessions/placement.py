"""Where a session without a home goes.

Round robin with a load bound while the table answers; rendezvous hashing, on which gateways agree without talking,
while it is away.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef
from cosmos3_serve.reasoner.sessions.decide import Action, Choice


class RoundRobin:
    """A cursor over replica ids that survives joins and leaves: it remembers whom it served last, not a position."""

    def __init__(self) -> None:
        self._last = ""

    def peek(self, eligible: Sequence[ReplicaRef], load: Mapping[str, int] | None = None) -> ReplicaRef | None:
        """Whom `next` would give, without moving.

        Args:
            eligible: replicas in order of their ids.
            load: live sessions per replica id; a replica with more than the mean over `eligible` plus one is skipped
                (docs/contract.md 9). None: no bound.
        """
        if not eligible:
            return None
        start = bisect_right([ref.id for ref in eligible], self._last)
        turn = [*eligible[start:], *eligible[:start]]
        if load is None:
            return turn[0]
        most = sum(load.get(ref.id, 0) for ref in eligible) / len(eligible) + 1
        # Somebody is always at or below the mean, so the search never comes back empty.
        return next(ref for ref in turn if load.get(ref.id, 0) <= most)

    def next(self, eligible: Sequence[ReplicaRef], load: Mapping[str, int] | None = None) -> ReplicaRef | None:
        """The next replica whose turn it is, None without any."""
        chosen = self.peek(eligible, load)
        if chosen is not None:
            self._last = chosen.id
        return chosen


def rendezvous(key: str, eligible: Sequence[ReplicaRef]) -> ReplicaRef | None:
    """Highest-random-weight choice: every gateway with the same replicas gives the same answer, a replica that leaves
    moves only its own keys. The incarnation does not count, so a restart moves nothing."""

    def weight(ref: ReplicaRef) -> bytes:
        return blake2b(f"{key}\0{ref.id}".encode(), digest_size=8).digest()

    return max(eligible, key=weight, default=None)


def settled(choice: Choice, spills: RoundRobin, *, dry: bool) -> ReplicaRef | None:
    """The replica of a choice that places nobody anew: the home, whose turn it is among the others, or none. `dry`
    moves no cursor."""
    if choice.action is Action.SPILL:
        return spills.peek(choice.candidates) if dry else spills.next(choice.candidates)
    return choice.candidates[0] if choice.candidates else None
