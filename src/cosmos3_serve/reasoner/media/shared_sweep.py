"""Sweep of a shared shelf: age and bounds, by every gateway alike and without a lock.

Only the store's own times decide, and each removal is one that every gateway would make: a file that is too old, the
oldest of a tenant or of all that keep too much, a content without a record (and the reverse) that is older than any
upload takes. So two gateways that sweep at once do no harm, and one that dies in between leaves nothing for ever.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from cosmos3_serve.reasoner.media.uploads import FILE_ID
from cosmos3_serve.storage.location import Location

log = structlog.get_logger(__name__)

EVERY_S = 600.0
GRACE_S = 6 * 3600.0  # some stores date a multipart upload by its beginning


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of the shared uploads: bytes and files of all tenants and of one, and seconds until a file is removed."""

    max_bytes: int
    max_tenant_bytes: int
    max_age_s: float = 7 * 24 * 3600.0
    max_tenant_files: int = 1000
    max_files: int = 100_000


@dataclass(slots=True)
class _File:
    """What the store holds of one upload: keys and sizes; either may be missing."""

    shelf: str
    record: str = ""
    content: str = ""
    size: int = 0
    modified: float = 0.0


def fits(files: int, held: int, size: int, bounds: Bounds) -> str:
    """Why one tenant may not keep `size` bytes more; empty when it may."""
    if files >= bounds.max_tenant_files:
        return f"{bounds.max_tenant_files} files are kept for you"
    if held + size > bounds.max_tenant_bytes:
        return f"your uploads hold {held} of {bounds.max_tenant_bytes} bytes"
    return ""


class Sweep:
    """`run` often: it looks at the store every ten minutes or so, not at the same moment as other gateways."""

    def __init__(self, place: Location, bounds: Bounds, clock: Callable[[], float]) -> None:
        self._place, self._bounds, self._clock = place, bounds, clock
        self._next = clock() + random.uniform(0.1, 1.0) * EVERY_S
        self._files = self._bytes = 0

    def full(self, size: int) -> str:
        """Why all tenants together keep too much, as far as the last look tells; empty when they do not."""
        bounds = self._bounds
        if self._files >= bounds.max_files:
            return f"{bounds.max_files} files are kept in all"
        if self._bytes + size > bounds.max_bytes:
            return f"uploads hold {self._bytes} of {bounds.max_bytes} bytes"
        return ""

    def added(self, size: int) -> None:
        self._files, self._bytes = self._files + 1, self._bytes + size

    async def run(self, *, now: bool = False) -> None:
        if not now and self._clock() < self._next:
            return
        self._next = self._clock() + random.uniform(0.8, 1.2) * EVERY_S
        files = await self._look()
        gone = self._to_go(files)
        for file in gone:
            # The record first: a file that is there has its content.
            for key in filter(None, (file.record, file.content)):
                await self._place.store.delete(key)
        self._files = len(files) - len(gone)
        self._bytes = sum(file.size for file in files) - sum(file.size for file in gone)
        if gone:
            log.info("shared_files_removed", files=len(gone), bytes=sum(file.size for file in gone))

    async def _look(self) -> list[_File]:
        """Contents before records, so that what is uploaded meanwhile is seen whole or without its content."""
        files: dict[tuple[str, str], _File] = {}
        for kind in ("contents", "files"):
            root = self._place.key(kind)
            async for info in self._place.store.list(root):
                parts = info.key[len(root) + 1 :].split("/")
                file_id = parts[-1].removesuffix(".json")
                if not FILE_ID.match(file_id):
                    continue  # none of ours
                file = files.setdefault((parts[0], file_id), _File(parts[0]))
                file.modified = max(file.modified, info.modified or 0.0)
                if kind == "files":
                    file.record = info.key
                else:
                    file.content, file.size = info.key, info.size
        return list(files.values())

    def _to_go(self, files: list[_File]) -> list[_File]:
        now, bounds = self._clock(), self._bounds
        old = [f for f in files if now - f.modified > bounds.max_age_s]
        halves = [f for f in files if not (f.record and f.content) and now - f.modified > GRACE_S]
        gone = {id(f): f for f in (*old, *halves)}
        shelves: dict[str, list[_File]] = {}
        for file in files:
            if id(file) not in gone:
                shelves.setdefault(file.shelf, []).append(file)
        for own in shelves.values():
            gone |= _oldest(own, bounds.max_tenant_bytes, bounds.max_tenant_files)
        rest = [f for f in files if id(f) not in gone]
        return list((gone | _oldest(rest, bounds.max_bytes, bounds.max_files)).values())


def _oldest(files: Iterable[_File], max_bytes: int, max_files: int) -> dict[int, _File]:
    """The oldest, until the others keep to the bounds; that is rare, for uploads past them are refused."""
    kept = sorted(files, key=lambda f: (f.modified, f.record))
    size = sum(f.size for f in kept)
    gone: dict[int, _File] = {}
    for file in kept:
        if size <= max_bytes and len(kept) - len(gone) <= max_files:
            break
        gone[id(file)] = file
        size -= file.size
    return gone
