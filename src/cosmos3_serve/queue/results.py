"""How parts ended: at the output place for everybody, in this machine's queue file, and on the board."""

from __future__ import annotations

from dataclasses import dataclass

from cosmos3_serve.publication.pool import each
from cosmos3_serve.queue.board import Board
from cosmos3_serve.queue.database import QueueDatabase
from cosmos3_serve.queue.place import QueuePlace
from cosmos3_serve.queue.records import PartResult
from cosmos3_serve.storage.files import in_thread

READS = 16


@dataclass
class Results:
    place: QueuePlace
    database: QueueDatabase
    board: Board

    async def load(self) -> None:
        """What this machine knows, then what the place says beyond it."""
        for row in await in_thread(self.database.rows):
            if row.result is not None:
                self.board.ended(row.result)
            self.board.attempts[row.name] = row.attempts
            if row.attempts or row.endpoint:
                self.board.known.add(row.name)
            if row.endpoint:
                self.board.endpoint[row.name] = row.endpoint
        await self.fetch()

    async def fetch(self) -> None:
        """What other workers recorded."""
        found: list[PartResult] = []

        async def read(name: str) -> None:
            if (result := await self.place.result(name)) is not None:
                found.append(result)

        await each(self.board.unknown(await self.place.ended()), READS, read)
        if found:
            await in_thread(self.database.end, found)
            for result in found:
                self.board.ended(result)

    async def record(self, result: PartResult) -> PartResult:
        """First at the place, then here: what another worker recorded before stands and is returned."""
        stored = await self.place.add_result(result)
        await in_thread(self.database.end, [stored])
        self.board.ended(stored)
        return stored
