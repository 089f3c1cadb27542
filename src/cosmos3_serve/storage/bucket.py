"""One S3 bucket over HTTP.

Retries are ours for every single request, so that what a repeated request means is decided per operation (a repeated
conditional create may meet its own first success). Only the parts of a multipart upload are retried by the client
library. Bodies are sent plain, with no trailing checksum: some stores would keep the checksum in the object.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import obstore

from cosmos3_serve.errors import (
    Conflict,
    Cosmos3Error,
    IntegrityError,
    LimitExceeded,
    NotFound,
    RangeNotSatisfiable,
    StorageFailure,
)
from cosmos3_serve.retry import STORAGE, Attempts, RetryPolicy
from cosmos3_serve.storage import files
from cosmos3_serve.storage.credentials import S3Access
from cosmos3_serve.storage.faults import raise_translated, refuse_error_body, translate
from cosmos3_serve.storage.growing import Growing
from cosmos3_serve.storage.multipart import PART_BYTES, PART_CONCURRENCY, Multipart
from cosmos3_serve.storage.pace import Pace, TimeLimits
from cosmos3_serve.storage.reading import RANGE_BYTES, NoRanges, Reading, check_size, hash_in_ranges, open_at
from cosmos3_serve.storage.retry import after, retrying, within
from cosmos3_serve.storage.s3_client import S3Clients
from cosmos3_serve.storage.store import CHUNK_BYTES, ObjectInfo, ObjectStore, no_conditional_put
from cosmos3_serve.storage.uri import check_key

if TYPE_CHECKING:
    from obstore import PutMode

STORES_KEPT = 32
ENDS = 2  # answers in a row that name nothing more
GROWING_CONCURRENCY = 2  # parts of one file: what writes it is slower than this, and others begin beside it


def bucket_store(bucket: str, environ: Mapping[str, str] | None = None) -> BucketStore:
    """The shared store of a bucket for the endpoint and credentials of `environ` (default: the process's).

    Raises:
        UsageError: S3 is not configured.
    """
    return _shared(bucket, S3Access.from_environ(environ))


@functools.lru_cache(maxsize=STORES_KEPT)
def _shared(bucket: str, access: S3Access) -> BucketStore:
    return BucketStore(bucket, access)


class BucketStore(ObjectStore):
    """See `ObjectStore`. Path-style addressing; the endpoint is always explicit."""

    def __init__(
        self, bucket: str, access: S3Access, policy: RetryPolicy = STORAGE, limits: TimeLimits | None = None
    ) -> None:
        self._policy, self._limits = policy, limits or TimeLimits()
        self._clients = S3Clients(bucket, access, policy, self._limits)
        self._once = self._clients.plain
        # Admission is of one event loop; programs that run several one after the other share this store.
        self._paces: WeakKeyDictionary[asyncio.AbstractEventLoop, Pace] = WeakKeyDictionary()

    @property
    def pace(self) -> Pace:
        """The admission of uploads on the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._paces:
            self._paces[loop] = Pace(self._limits)
        return self._paces[loop]

    async def head(self, key: str) -> ObjectInfo | None:
        check_key(key)

        async def call(_: int) -> ObjectInfo | None:
            try:
                meta = await obstore.head_async(self._once, key)
            except Exception as error:
                failure = translate(error, "look up the object")
                if isinstance(failure, NotFound):
                    return None
                raise failure from None
            return ObjectInfo(key, meta["size"], meta["e_tag"], meta["last_modified"].timestamp())

        return await retrying(self._policy, call)

    async def get_stream(
        self, key: str, *, start: int = 0, chunk_size: int = CHUNK_BYTES, max_bytes: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        check_key(key)
        async with aclosing(Reading(self._once, key, self._policy, start).pieces(chunk_size, max_bytes)) as pieces:
            async for piece in pieces:
                yield bytes(piece)

    async def get_bytes(self, key: str, *, max_bytes: int) -> tuple[ObjectInfo, bytes] | None:
        check_key(key)

        async def call(_: int) -> tuple[ObjectInfo, bytes] | None:
            try:
                result = await open_at(self._once, key)
                meta = result.meta
                check_size(meta["size"], 0, max_bytes)
                data = bytes(await result.bytes_async())
                refuse_error_body(meta["e_tag"], data)
            except Cosmos3Error:
                raise
            except Exception as error:
                failure = translate(error, "read the object")
                if failure.stable_code == "object_not_found":
                    return None
                if failure.stable_code == "object_changed":  # no condition was set, and all of it is read anew
                    failure = StorageFailure(failure.detail, code="storage_unavailable")
                raise failure from None
            return ObjectInfo(key, len(data), meta["e_tag"], meta["last_modified"].timestamp()), data

        return await retrying(self._policy, call)

    async def put_bytes(self, key: str, data: bytes, *, create: bool = False) -> ObjectInfo:
        return await self._put(key, data, "create" if create else "overwrite", None)

    async def swap(self, key: str, data: bytes, expected: ObjectInfo) -> ObjectInfo:
        if not expected.etag:
            raise no_conditional_put("object storage gives the object no entity tag")
        return await self._put(key, data, {"e_tag": expected.etag}, expected.etag)

    async def _put(self, key: str, data: bytes, mode: PutMode, etag: str | None) -> ObjectInfo:
        check_key(key)
        attempts, pace = Attempts(replace(self._policy, deadline_s=math.inf)), self.pace  # each try has its time limit
        while True:
            try:
                async with pace.admitted(1, len(data)):
                    limit = pace.time_limit_s(len(data))
                    try:
                        async with within(2 * limit + self._limits.connect_s):
                            done = await obstore.put_async(
                                self._clients.of(limit), key, data, mode=mode, use_multipart=False
                            )
                    except Exception as error:
                        raise translate(error, "store the object", conditional=mode != "overwrite") from None
                return ObjectInfo(key, len(data), done["e_tag"])
            except Conflict as refusal:
                # S3 also answers 409 to a conditional PUT while another write or delete of the key is under way, even
                # one that then fails. What is there now decides.
                info = await self.head(key)
                if (info.etag if info else None) != etag:
                    if attempts.failures and info and await self._holds(info, data):
                        return info  # an earlier try of ours was carried out and only its answer was lost
                    if etag is None:
                        raise refusal from None
                    raise Conflict("the object was replaced or removed meanwhile", code="precondition_failed") from None
                failure = StorageFailure("another write to the object was in progress", code="storage_unavailable")
            except StorageFailure as error:
                failure = error
            await after(failure, attempts)

    async def _holds(self, info: ObjectInfo, data: bytes) -> bool:
        if info.size != len(data):
            return False
        try:
            found = await self.get_bytes(info.key, max_bytes=len(data))
        except LimitExceeded:
            return False
        return found is not None and found[1] == data

    async def read_back(self, key: str, size: int = 0) -> tuple[int, str]:
        check_key(key)
        attempts = Attempts(self._policy)
        while True:
            try:
                if size > 2 * RANGE_BYTES:
                    return await hash_in_ranges(self._once, key, self._policy, self.pace.ranges)
                return await self.hash_object(key)
            except NotFound as error:
                if error.stable_code != "object_not_found":
                    raise
            except (RangeNotSatisfiable, NoRanges):  # the first: it is empty
                size = 0
                continue
            await after(_not_there_yet(), attempts)

    async def put_file(self, key: str, path: Path, *, create: bool = False) -> ObjectInfo:
        check_key(key)
        try:
            size = (await files.in_thread(path.stat)).st_size
            if size <= PART_BYTES:
                return await self.put_bytes(key, await files.in_thread(path.read_bytes), create=create)
        except OSError as error:
            raise files.failure("read the file to upload", error) from None
        await self._upload(Multipart(self._clients, self.pace, self._policy), key, Growing.complete(path, size), create)
        attempts = Attempts(self._policy)
        while (stored := await self.head(key)) is None:
            await after(_not_there_yet(), attempts)
        if stored.size != size:
            raise IntegrityError(f"after the upload of {size} bytes object storage holds {stored.size} bytes")
        return stored

    def takes_growing(self, size: int) -> bool:
        return size > PART_BYTES

    async def put_growing(self, key: str, file: Growing, *, create: bool = False) -> ObjectInfo:
        check_key(key)
        parts = Multipart(self._clients, self.pace, replace(self._policy, attempts=1))
        return ObjectInfo(key, file.size, await self._upload(parts, key, file, create, concurrency=GROWING_CONCURRENCY))

    async def _upload(
        self, parts: Multipart, key: str, file: Growing, create: bool, *, concurrency: int = PART_CONCURRENCY
    ) -> str | None:
        async def look() -> None:
            if create and await self.head(key) is not None:
                raise Conflict("cannot upload the file: the object exists already", code="object_exists")

        await look()
        return await parts.upload(key, file, look, concurrency=concurrency)

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        prefix = prefix.strip("/")
        if prefix:
            check_key(prefix)
        attempts = Attempts(self._policy)
        last: str | None = None
        ends = 0
        # The library takes any XML for a page: an error document with status 200, or a page that is cut without a word
        # about it, reads as the end of the listing. So the end must be said twice: asked for what follows the last key,
        # the store names nothing more.
        while ends < ENDS:
            ends += 1
            try:
                async for page in obstore.list(self._once, prefix or None, offset=last, chunk_size=1000):
                    attempts.progressed()
                    for meta in page:
                        last, ends = meta["path"], 1
                        yield ObjectInfo(last, meta["size"], meta["e_tag"], meta["last_modified"].timestamp())
                continue
            except Exception as error:
                failure = translate(error, "list the objects")
            ends = 0
            await after(failure, attempts)

    async def delete(self, key: str) -> None:
        check_key(key)

        async def call(_: int) -> None:
            try:
                await obstore.delete_async(self._once, key)
            except Exception as error:
                failure = translate(error, "delete the object")
                if not (isinstance(failure, NotFound) and failure.stable_code == "object_not_found"):
                    raise failure from None

        await retrying(self._policy, call)

    async def check(self) -> None:
        async def call(_: int) -> None:
            try:
                async for _page in obstore.list(self._once, chunk_size=1):
                    break
            except Exception as error:
                raise_translated(error, "list the bucket")

        await retrying(self._policy, call)


def _not_there_yet() -> StorageFailure:
    return StorageFailure("object storage does not show an object that it has just stored", code="storage_unavailable")
