"""Expiry and bounds of the upload store: every gateway sweeps alike, without a lock.

Only files that are provably expired or torn are removed: the expiry that a content's key carries has passed, or a
content without its record (or the reverse) is older than any upload takes. A file within its time is never removed to
keep a bound; over a bound new uploads are refused. Two gateways that sweep at once do no harm, and one that dies in
between leaves nothing for ever. A listing that fails removes nothing.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from cosmos3_serve.reasoner.media.file_record import FILE_ID, FileRecord, storage_full
from cosmos3_serve.storage.location import Location

log = structlog.get_logger(__name__)

EVERY_S = 600.0
RECOUNT_S = 15.0  # before a refusal because of all tenants: others may have deleted since
GRACE_S = 6 * 3600.0  # some stores date a multipart upload by its beginning


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of all uploads: bytes and files of all tenants and of one, and seconds until a file is removed."""

    max_bytes: int
    max_tenant_bytes: int
    max_age_s: float = 7 * 24 * 3600.0
    max_tenant_files: int = 1000
    max_files: int = 100_000


@dataclass(slots=True)
class _File:
    """What the store holds of one upload: keys and sizes; either may be missing.

    `modified`: the later of the two, infinite where the store does not tell. `expires_at`: as the key says, if it does.
    """

    record: str = ""
    content: str = ""
    size: int = 0
    modified: float = 0.0
    expires_at: float | None = None


def content_name(record: FileRecord) -> str:
    """The last part of a content's key: with its expiry, so that the sweep need not read records."""
    return f"{record.id}.{record.expires_at}"


def fits(files: int, held: int, size: int, bounds: Bounds) -> str:
    """Why one tenant may not keep `size` bytes more; empty when it may."""
    if files >= bounds.max_tenant_files:
        return f"{bounds.max_tenant_files} files are kept for you"
    if held + size > bounds.max_tenant_bytes:
        return f"your uploads hold {held} of {bounds.max_tenant_bytes} bytes"
    return ""


class Sweep:
    """What all tenants keep, counted at the start and about every ten minutes, and the removal of what has expired.

    Gateways do not count at the same moment. Between two counts this one knows its own uploads and deletions only.
    """

    def __init__(self, place: Location, bounds: Bounds, clock: Callable[[], float]) -> None:
        self._place, self._bounds, self._clock = place, bounds, clock
        self._next = self._counted_at = -math.inf
        self._lock = asyncio.Lock()
        self._files = self._bytes = 0  # at the last count, and since
        self._coming_files = self._coming_bytes = 0  # being uploaded
        self._since_files = self._since_bytes = 0  # kept while a count was under way

    @asynccontextmanager
    async def room(self, size: int) -> AsyncIterator[None]:
        """Hold room for one upload of `size` bytes; it is counted as kept unless the block raises.

        Raises:
            LimitExceeded: code `file_storage_full`: all tenants together keep too much.
        """
        if self._counted_at == -math.inf or (self._full(size) and self._clock() - self._counted_at >= RECOUNT_S):
            await self.run(now=True)
        if reason := self._full(size):
            raise storage_full(reason)
        self._coming_files, self._coming_bytes = self._coming_files + 1, self._coming_bytes + size
        try:
            yield
            self._change(1, size)
        finally:
            self._coming_files, self._coming_bytes = self._coming_files - 1, self._coming_bytes - size

    def removed(self, size: int) -> None:
        self._change(-1, -size)

    async def run(self, *, now: bool = False) -> None:
        """Count and remove, if it is time. Raises as the store; then nothing is known to have changed."""
        asked = self._clock()
        if not now and asked < self._next:
            return
        async with self._lock:
            if self._counted_at > asked or (not now and asked < self._next):
                return  # somebody else has just done it
            started = self._clock()
            self._since_files = self._since_bytes = 0
            files = await self._look()
            gone = [file for file in files if self._ended(file)]
            self._files = len(files) + self._since_files
            self._bytes = sum(file.size for file in files) + self._since_bytes
            self._counted_at = started
            self._next = started + random.uniform(0.8, 1.2) * EVERY_S
            for file in gone:
                # The record first: a file that is there has its content.
                for key in filter(None, (file.record, file.content)):
                    await self._place.store.delete(key)
                self.removed(file.size)
        if gone:
            log.info("uploads_removed", files=len(gone), bytes=sum(file.size for file in gone))

    def _change(self, files: int, size: int) -> None:
        self._files, self._bytes = max(0, self._files + files), max(0, self._bytes + size)
        if files > 0:  # a count under way may have passed it; counted twice until the next one is the safe side
            self._since_files, self._since_bytes = self._since_files + files, self._since_bytes + size

    def _full(self, size: int) -> str:
        """Why all tenants together keep too much, as far as is known here; empty when they do not."""
        bounds = self._bounds
        held = self._bytes + self._coming_bytes
        if self._files + self._coming_files >= bounds.max_files:
            return f"{bounds.max_files} files are kept in all"
        if held + size > bounds.max_bytes:
            return f"uploads hold {held} of {bounds.max_bytes} bytes"
        return ""

    async def _look(self) -> list[_File]:
        """Contents before records, so that what is uploaded meanwhile is seen whole or without its content."""
        files: dict[tuple[str, str], _File] = {}
        for kind in ("contents", "files"):
            root = self._place.key(kind)
            async for info in self._place.store.list(root):
                parts = info.key[len(root) + 1 :].split("/")
                file_id, _, end = parts[-1].partition(".")
                if not FILE_ID.match(file_id) or not (end == "json" if kind == "files" else not end or end.isdigit()):
                    continue  # none of ours
                file = files.setdefault((parts[0], file_id), _File())
                file.modified = max(file.modified, math.inf if info.modified is None else info.modified)
                if kind == "files":
                    file.record = info.key
                else:
                    file.content, file.size = info.key, info.size
                    file.expires_at = int(end) if end else None
        return list(files.values())

    def _ended(self, file: _File) -> bool:
        now = self._clock()
        age = now - file.modified
        if not (file.record and file.content):
            return age > GRACE_S
        return age > self._bounds.max_age_s if file.expires_at is None else now >= file.expires_at
