"""A file that is uploaded while it is still being written, and released whole only once it is known to be right."""

from __future__ import annotations

import asyncio
from pathlib import Path


class Spoiled(Exception):
    """What was written is not what shall be stored: the upload must leave nothing behind."""


class Growing:
    """How much of one file may be uploaded; of one event loop.

    The writer tells how far it is. The last byte is held back until the file is `verified`, so that an upload whose end
    depends on its last byte cannot end before.

    Args:
        path: the file, which appears with its first byte; the reader keeps it open, so it may be renamed.
        size: bytes of the whole.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size
        self._written, self._verified, self._spoiled = 0, False, False
        self._changed: list[asyncio.Future[None]] = []

    @classmethod
    def complete(cls, path: Path, size: int) -> Growing:
        """A file that is there and right."""
        made = cls(path, size)
        made.verify()
        return made

    def moved(self, path: Path) -> None:
        """The file has another name now."""
        self.path = path

    def write(self, written: int) -> None:
        """The first `written` bytes are in the file."""
        self._written = written
        self._wake()

    def verify(self) -> None:
        """The whole file is there and right."""
        self._written, self._verified = self.size, True
        self._wake()

    def spoil(self) -> None:
        """The file is written anew, or given up. Nothing can be taken back from an upload: it ends."""
        self._spoiled = True
        self._wake()

    def reaches(self, position: int) -> bool:
        """Whether the first `position` bytes may be read.

        Raises:
            Spoiled: they never may.
        """
        if self._spoiled:
            raise Spoiled
        return position <= (self.size if self._verified else min(self._written, self.size - 1))

    async def reach(self, position: int) -> None:
        """Wait until `reaches`."""
        while not self.reaches(position):
            change = asyncio.get_running_loop().create_future()
            self._changed.append(change)
            await change

    def _wake(self) -> None:
        changed, self._changed = self._changed, []
        for change in changed:
            if not change.done():
                change.set_result(None)
