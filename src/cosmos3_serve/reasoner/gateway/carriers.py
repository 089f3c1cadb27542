"""Carriers: which media are on their way to which replica right now, so that ten first questions carry a video once.

Whoever needs an item that another question is carrying tries it by name instead, again and again until the replica
knows it or the carrier has ended. A try costs a few milliseconds; bytes would cost the replica decoding them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef

TRY_S = 0.2


class Flight:
    """Some items on their way to one replica; `end` it in every case."""

    def __init__(self, going: dict[tuple[ReplicaRef, str], Flight], keys: Collection[tuple[ReplicaRef, str]]) -> None:
        self._going, self._keys = going, keys
        self._over = asyncio.Event()
        for key in keys:
            going[key] = self

    def end(self) -> None:
        for key in self._keys:
            if self._going.get(key) is self:
                del self._going[key]
        self._over.set()

    async def wait(self, seconds: float = TRY_S) -> None:
        """Until it has ended, or for so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            return


class Carriers:
    def __init__(self) -> None:
        self._going: dict[tuple[ReplicaRef, str], Flight] = {}

    def __len__(self) -> int:
        return len(self._going)

    def of(self, replica: ReplicaRef, uuids: Collection[str]) -> Flight | None:
        """A flight that carries one of these items there."""
        return next((flight for uuid in uuids if (flight := self._going.get((replica, uuid)))), None)

    def begin(self, replica: ReplicaRef, uuids: Collection[str]) -> Flight:
        return Flight(self._going, [(replica, uuid) for uuid in uuids])
