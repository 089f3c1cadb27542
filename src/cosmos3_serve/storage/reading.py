"""Read objects of one bucket: a cut is continued where it broke, a large object is read in several places at once."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeAlias

import obstore
from obstore.store import S3Store

from cosmos3_serve.errors import Cosmos3Error, IntegrityError, LimitExceeded, RangeNotSatisfiable, StorageFailure
from cosmos3_serve.retry import Attempts, RetryPolicy
from cosmos3_serve.storage import files
from cosmos3_serve.storage.faults import refuse_error_body, translate
from cosmos3_serve.storage.pace import MIB
from cosmos3_serve.storage.retry import after

if TYPE_CHECKING:
    from obstore import Bytes, GetOptions, GetResult

Piece: TypeAlias = "bytes | Bytes"
CHUNK_BYTES = MIB
RANGE_BYTES = 4 * MIB
AHEAD = 4  # ranges of one object
NOT_PARTIAL = "non-partial response"  # of the client library: the answer to a range was the whole


class NoRanges(Exception):
    """The store answers a range with the whole, or gives no versions by which two ranges belong together."""


async def open_at(client: S3Store, key: str, start: int = 0, stop: int | None = None, etag: str = "") -> GetResult:
    """The object from byte `start` to before `stop` (None: its end), of the version `etag` where one is given."""
    options: GetOptions = {}
    if stop is not None:
        options["range"] = (start, stop)
    elif start:
        options["range"] = {"offset": start}
    if etag:
        options["if_match"] = etag
    return await obstore.get_async(client, key, options=options)


class Reading:
    """A part of one object, piece by piece.

    Args:
        start, stop: bytes; None: to its end.
        etag: of the version to read; empty: the one that is there.

    Attributes:
        size: bytes of the whole object, -1 until the first piece.
    """

    def __init__(
        self, client: S3Store, key: str, policy: RetryPolicy, start: int = 0, stop: int | None = None, etag: str = ""
    ) -> None:
        self._client, self._key, self._policy, self._start, self._stop = client, key, policy, start, stop
        self._pinned = self.etag = etag
        self.size = -1

    async def pieces(self, chunk_size: int = CHUNK_BYTES, max_bytes: int | None = None) -> AsyncGenerator[Piece, None]:
        """Pieces of about `chunk_size` bytes; never fewer bytes than there are."""
        attempts, start = Attempts(self._policy), self._start
        position, since_failure, end = start, 0, -1
        while position != end:
            failure: Cosmos3Error
            try:
                result = await open_at(self._client, self._key, position, self._stop, self.etag)
                size = result.meta["size"]
                if end < 0:
                    check_size(size, start, max_bytes)
                    self.size, self.etag = size, result.meta["e_tag"] or ""
                    end = size if self._stop is None else min(size, self._stop)
                elif size != self.size:
                    raise StorageFailure("the object was replaced while it was read", code="object_changed")
                async for chunk in result.stream(min_chunk_size=chunk_size):
                    if position == 0:
                        refuse_error_body(self.etag or None, bytes(chunk[:4096]))
                    position += len(chunk)
                    since_failure += len(chunk)
                    if position > end:
                        raise IntegrityError(f"object storage sent more than the declared {end} bytes")
                    yield chunk
                if position == end:
                    return
                failure = StorageFailure("the object's body ended early", code="storage_unavailable")
            except Cosmos3Error as error:
                failure = error
                if position == start:
                    end, self.etag = -1, self._pinned
            except Exception as error:
                if NOT_PARTIAL in str(error) and position == 0:
                    raise NoRanges from None
                failure = translate(error, "read the object")
            if since_failure >= CHUNK_BYTES:
                attempts.progressed()
            since_failure = 0
            await after(failure, attempts)


async def hash_in_ranges(client: S3Store, key: str, policy: RetryPolicy, places: asyncio.Semaphore) -> tuple[int, str]:
    """Size in bytes and SHA-256 of one version of an object, hashed in order while later ranges are on their way.

    Args:
        places: one is held for each range in memory.

    Raises:
        NoRanges: read it from start to end.
        StorageFailure: code `object_changed`: it was replaced meanwhile.
    """
    digest = hashlib.sha256()

    async def fetch(reading: Reading) -> list[Piece]:
        async with aclosing(reading.pieces()) as pieces:
            return [piece async for piece in pieces]

    def update(pieces: list[Piece]) -> None:
        for piece in pieces:
            digest.update(piece)

    first = Reading(client, key, policy, 0, RANGE_BYTES)
    async with places:
        await files.in_thread(update, await fetch(first))
    position = RANGE_BYTES
    under_way: deque[asyncio.Task[list[Piece]]] = deque()
    if not first.etag:  # then nothing joins two ranges
        raise NoRanges
    try:
        while position < first.size or under_way:
            while position < first.size and len(under_way) < AHEAD and not (under_way and places.locked()):
                await places.acquire()
                reading = Reading(client, key, policy, position, position + RANGE_BYTES, first.etag)
                under_way.append(asyncio.create_task(fetch(reading)))
                position += RANGE_BYTES
            await files.in_thread(update, await under_way[0])
            under_way.popleft()
            places.release()
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        for _ in under_way:
            places.release()
    return first.size, digest.hexdigest()


def check_size(size: int, start: int, max_bytes: int | None) -> None:
    """
    Raises:
        LimitExceeded: code `object_too_large`.
        RangeNotSatisfiable: `start` is above 0 and not before the end.
    """
    if max_bytes is not None and size > max_bytes:
        raise LimitExceeded(
            f"the object has {size} bytes, the limit is {max_bytes}",
            remedy="use a smaller object, or raise the limit",
            code="object_too_large",
        )
    if start and start >= size:
        raise RangeNotSatisfiable(f"the object has {size} bytes, the requested start is {start}")
