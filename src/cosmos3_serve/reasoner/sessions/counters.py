"""What the gateway counts per replica; exporters read it."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from cosmos3_serve.reasoner.sessions.policy import Outcome

MAX_REPLICAS = 1024


@dataclass(slots=True)
class ReplicaCounts:
    """Accepted requests by what became of their session, and bindings that ended by age.

    `new` counts sessions, not requests: of ten concurrent first questions one is new and nine are hits.
    """

    hit: int = 0
    new: int = 0
    moved: int = 0
    expired: int = 0
    spilled: int = 0
    none: int = 0


class RouteCounters:
    """Counts per replica id, of the most recently used replicas; `failures` by stable code."""

    def __init__(self) -> None:
        self._replicas: OrderedDict[str, ReplicaCounts] = OrderedDict()
        self.failures: Counter[str] = Counter()
        self.retries = 0

    def add(self, replica: str, outcome: Outcome) -> None:
        counts = self._replicas.setdefault(replica, ReplicaCounts())
        setattr(counts, outcome.value, getattr(counts, outcome.value) + 1)
        self._replicas.move_to_end(replica)
        while len(self._replicas) > MAX_REPLICAS:
            self._replicas.popitem(last=False)

    def rows(self, expired: Mapping[str, int] | None = None) -> dict[str, dict[str, int]]:
        """Replica id -> counts; `expired` comes from the table, which alone knows."""
        rows = {replica: asdict(counts) for replica, counts in self._replicas.items()}
        for replica, count in (expired or {}).items():
            rows.setdefault(replica, asdict(ReplicaCounts()))["expired"] = count
        return rows
