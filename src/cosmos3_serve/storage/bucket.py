"""One S3 bucket over HTTP.

Retries are ours for every single request, so that what a repeated request means is decided per operation (a repeated
conditional create may meet its own first success). Only the parts of a multipart upload are retried by the client
library. Bodies are sent plain, with no trailing checksum: some stores would keep the checksum in the object.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

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
from cosmos3_serve.storage import files
from cosmos3_serve.storage.credentials import S3Access
from cosmos3_serve.storage.faults import raise_translated, translate
from cosmos3_serve.storage.retry import Attempts, RetryPolicy, retrying
from cosmos3_serve.storage.s3_client import s3_client
from cosmos3_serve.storage.store import CHUNK_BYTES, ObjectInfo, ObjectStore, no_conditional_put
from cosmos3_serve.storage.uri import check_key

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, PutMode

PART_BYTES = 8 * 1024 * 1024
PART_CONCURRENCY = 4
MAX_PARTS = 10_000  # S3's own limit
STORES_KEPT = 32
ABORT_WAIT_S = 10.0


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

    def __init__(self, bucket: str, access: S3Access, policy: RetryPolicy | None = None) -> None:
        self._policy = policy or RetryPolicy()
        self._once = s3_client(bucket, access, self._policy, retries=0)
        self._parts = s3_client(bucket, access, self._policy, retries=self._policy.attempts - 1)

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
        attempts = Attempts(self._policy)
        position, since_failure, end, etag = start, 0, -1, None
        while position != end:
            failure: Cosmos3Error
            try:
                result = await self._open(key, position, etag)
                size = result.meta["size"]
                if end < 0:
                    _check_size(size, start, max_bytes)
                    end, etag = size, result.meta["e_tag"]
                elif size != end:
                    raise StorageFailure("the object was replaced while it was read", code="object_changed")
                async for chunk in result.stream(min_chunk_size=chunk_size):
                    position += len(chunk)
                    since_failure += len(chunk)
                    if position > end:
                        raise IntegrityError(f"object storage sent more than the declared {end} bytes")
                    yield bytes(chunk)
                if position == end:
                    return
                failure = StorageFailure("the object's body ended early", code="storage_unavailable")
            except Cosmos3Error as error:
                failure = error
            except Exception as error:
                failure = translate(error, "read the object")
            if since_failure >= CHUNK_BYTES:
                attempts.progressed()
            since_failure = 0
            await attempts.failed(failure)

    async def _open(self, key: str, position: int, etag: str | None) -> GetResult:
        options: GetOptions = {}
        if position:
            options["range"] = {"offset": position}
        if etag:
            options["if_match"] = etag
        return await obstore.get_async(self._once, key, options=options)

    async def get_bytes(self, key: str, *, max_bytes: int) -> tuple[ObjectInfo, bytes] | None:
        check_key(key)

        async def call(_: int) -> tuple[ObjectInfo, bytes] | None:
            try:
                result = await self._open(key, 0, None)
                meta = result.meta
                _check_size(meta["size"], 0, max_bytes)
                data = bytes(await result.bytes_async())
            except Cosmos3Error:
                raise
            except Exception as error:
                failure = translate(error, "read the object")
                if failure.stable_code == "object_not_found":
                    return None
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

        async def call(failures: int) -> ObjectInfo:
            try:
                done = await obstore.put_async(self._once, key, data, mode=mode, use_multipart=False)
            except Exception as error:
                failure = translate(error, "store the object", conditional=mode != "overwrite")
            else:
                return ObjectInfo(key, len(data), done["e_tag"])
            if not isinstance(failure, Conflict):
                raise failure
            # S3 also answers 409 to a conditional PUT while another write or delete of the key is under way, even one
            # that then fails. What is there now decides.
            info = await self.head(key)
            if (info.etag if info else None) == etag:
                raise StorageFailure("another write to the object was in progress", code="storage_unavailable")
            if failures and info and info.size == len(data) and await self._holds(info, data):
                return info  # an earlier try of ours was carried out and only its answer was lost
            if etag is None:
                raise failure
            raise Conflict("the object was replaced or removed meanwhile", code="precondition_failed")

        return await retrying(self._policy, call)

    async def _holds(self, info: ObjectInfo, data: bytes) -> bool:
        try:
            found = await self.get_bytes(info.key, max_bytes=len(data))
        except LimitExceeded:
            return False
        return found is not None and found[1] == data

    async def read_back(self, key: str) -> tuple[int, str]:
        attempts = Attempts(self._policy)
        while True:
            try:
                return await self.hash_object(key)
            except NotFound as error:
                if error.stable_code != "object_not_found":
                    raise
            await attempts.failed(_not_there_yet())

    async def put_file(self, key: str, path: Path, *, create: bool = False) -> ObjectInfo:
        check_key(key)
        try:
            size = (await files.in_thread(path.stat)).st_size
            if size <= PART_BYTES:
                return await self.put_bytes(key, await files.in_thread(path.read_bytes), create=create)
        except OSError as error:
            raise files.failure("read the file to upload", error) from None
        if create and await self.head(key) is not None:
            raise Conflict("cannot upload the file: the object exists already", code="object_exists")
        part = max(PART_BYTES, -(-size // MAX_PARTS))
        attempts = Attempts(self._policy)
        while True:
            source = _Source(path)
            upload = asyncio.ensure_future(self._upload(key, source, part))
            try:
                etag = await asyncio.shield(upload)
                break
            except asyncio.CancelledError:
                # Only the library knows the upload's id: it aborts it when its source fails, so let the source fail.
                source.stop()
                await asyncio.wait([upload], timeout=ABORT_WAIT_S)
                upload.cancel()
                raise
            except Exception as error:
                if isinstance(source.error, OSError):
                    raise files.failure("read the file to upload", source.error) from None
                failure = translate(error, "upload the file")
            finally:
                source.close()
            await attempts.failed(failure)
        while (stored := await self.head(key)) is None:
            await attempts.failed(_not_there_yet())
        if stored.size != size:
            raise IntegrityError(f"after the upload of {size} bytes object storage holds {stored.size} bytes")
        return ObjectInfo(key, size, etag)

    async def _upload(self, key: str, source: _Source, part: int) -> str | None:
        done = await obstore.put_async(
            self._parts, key, source, use_multipart=True, chunk_size=part, max_concurrency=PART_CONCURRENCY
        )
        return done["e_tag"]

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        prefix = prefix.strip("/")
        if prefix:
            check_key(prefix)
        attempts = Attempts(self._policy)
        last: str | None = None
        while True:
            try:
                async for page in obstore.list(self._once, prefix or None, offset=last, chunk_size=1000):
                    attempts.progressed()
                    for meta in page:
                        last = meta["path"]
                        yield ObjectInfo(last, meta["size"], meta["e_tag"], meta["last_modified"].timestamp())
                return
            except Exception as error:
                failure = translate(error, "list the objects")
            await attempts.failed(failure)

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


class _Source:
    """A file as the iterator that the client library pulls from its own threads; `stop` makes the next pull fail."""

    def __init__(self, path: Path) -> None:
        self._path, self._stopped = path, False
        self._file: IO[bytes] | None = None
        self.error: Exception | None = None

    def __iter__(self) -> _Source:
        return self

    def __next__(self) -> bytes:
        try:
            if self._stopped:
                raise InterruptedError("the upload was cancelled")
            if self._file is None:
                self._file = self._path.open("rb")
            chunk = self._file.read(CHUNK_BYTES)
        except Exception as error:
            self.error = error
            raise
        if not chunk:
            raise StopIteration
        return chunk

    def stop(self) -> None:
        self._stopped = True

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _not_there_yet() -> StorageFailure:
    return StorageFailure("object storage does not show an object that it has just stored", code="storage_unavailable")


def _check_size(size: int, start: int, max_bytes: int | None) -> None:
    if max_bytes is not None and size > max_bytes:
        raise LimitExceeded(
            f"the object has {size} bytes, the limit is {max_bytes}",
            remedy="use a smaller object, or raise the limit",
            code="object_too_large",
        )
    if start and start >= size:
        raise RangeNotSatisfiable(f"the object has {size} bytes, the requested start is {start}")
