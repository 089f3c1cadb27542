"""A bounded log of changes that readers follow by number."""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef


class UpdateKind(StrEnum):
    LEASE = "lease"
    PROVEN = "proven"
    SUSPECTED = "suspected"
    QUARANTINED = "quarantined"


class Update(NamedTuple):
    """`subject`: a session's key, a request's digest or a media hash. A lease's update holds its home itself, since the
    table may forget the session before every gateway has read it. `at`: of a suspicion the time at which it ends."""

    kind: UpdateKind
    subject: str
    home: ReplicaRef | None = None
    term: int = 0
    at: float = 0.0


class UpdateLog:
    """Keeps the last `capacity` changes; a reader that fell behind learns that it missed some."""

    def __init__(self, capacity: int = 8192) -> None:
        self._rows: deque[Update] = deque(maxlen=capacity)
        self.version = 0

    def append(self, news: Update) -> None:
        self._rows.append(news)
        self.version += 1

    def since(self, version: int, limit: int) -> tuple[list[Update], int, bool]:
        """(changes after `version`, oldest first and at most `limit`; the version then reached; whether some are lost).

        A reader may also be ahead, of a log that was lost: it starts over and has missed some.
        """
        first = self.version - len(self._rows)
        gap = version < first or version > self.version
        start = first if gap else version
        rows = list(islice(self._rows, start - first, start - first + limit))
        return rows, start + len(rows), gap
