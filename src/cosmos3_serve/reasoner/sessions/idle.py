"""Idle sessions in the order in which they went idle."""

from __future__ import annotations

import heapq


class IdleQueue:
    """Finds the longest idle key in O(log n). A key that is parked again or taken out leaves its old heap row behind;
    rows are dropped when met, and the heap is rebuilt before they outnumber the keys."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._since)

    def park(self, key: str, since: float) -> None:
        """`key` is idle since `since` (seconds); parking it again replaces the time."""
        if self._since.get(key) == since:
            return
        self._since[key] = since
        heapq.heappush(self._heap, (since, key))
        if len(self._heap) > 2 * len(self._since) + 64:
            self._heap = [(at, k) for k, at in self._since.items()]
            heapq.heapify(self._heap)

    def take(self, key: str) -> None:
        """`key` is no longer idle; nothing happens if it was not."""
        self._since.pop(key, None)

    def oldest(self) -> tuple[float, str] | None:
        """(since, key) of the longest idle key, which stays parked."""
        while self._heap:
            since, key = self._heap[0]
            if self._since.get(key) == since:
                return since, key
            heapq.heappop(self._heap)
        return None
