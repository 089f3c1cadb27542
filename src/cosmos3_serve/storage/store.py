"""The interface to stored objects, streamed with bounded memory: `bucket.py` and `directory.py` implement it.

`prove`, `download` and `hash_object` are written once here, over what the stores provide.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path

from cosmos3_serve.errors import Conflict, IntegrityError, StorageFailure
from cosmos3_serve.storage import files
from cosmos3_serve.storage.growing import Growing

CHUNK_BYTES = 1024 * 1024
HASHED_AT_ONCE = 64 * 1024  # on the event loop: shorter than a change of threads
BOOKKEEPING = ".cosmos3-"  # folders of ours; a local one goes with its last object
PROBES = f"{BOOKKEEPING}probes"  # of the objects that proofs use
PROBE_KEPT_S = 3600.0  # a proof takes seconds: what is older was left by a killed process


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store says about one object: full key, size in bytes, entity tag where it has one, and when it was last
    written (Unix seconds of the store's clock; None after a write, which does not tell)."""

    key: str
    size: int
    etag: str | None = None
    modified: float | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """What `prove` found out about a store: whether keys that differ only by case are different objects."""

    case_sensitive: bool


@dataclass(frozen=True, slots=True)
class Downloaded:
    """A finished download: bytes written and their SHA-256 (64 lower hex)."""

    size: int
    sha256: str


def no_conditional_put(detail: str) -> StorageFailure:
    """Without conditions a publication could be overwritten, or appear before it is true: there is no safe fallback."""
    return StorageFailure(
        detail,
        code="conditional_put_unsupported",
        remedy="use a store that keeps `If-None-Match: *` and `If-Match` on PUT (Amazon S3 and most others do) or a "
        "file system with hard links; or publish to a local directory and copy it from there",
    )


class ObjectStore(ABC):
    """Objects by key below one root (a bucket or a directory). Safe for concurrent use; no call blocks the event loop.

    Every method raises:
        StorageAuthorizationError: code `invalid_key`: the key could not be kept under exactly its own name.
        NotFound: code `object_not_found` or `bucket_not_found` (never retried).
        StorageFailure: see its `retryable`; what could be retried has been, within the policy.
    """

    @abstractmethod
    async def head(self, key: str) -> ObjectInfo | None:
        """Size and tag, or None where there is no such object (or, on S3, no such bucket: a HEAD cannot tell)."""

    @abstractmethod
    def get_stream(
        self, key: str, *, start: int = 0, chunk_size: int = CHUNK_BYTES, max_bytes: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Stream the object from byte `start`, in pieces of about `chunk_size`; a cut is resumed, never shortened.

        Raises:
            RangeNotSatisfiable: `start` is above 0 and not before the end.
            LimitExceeded: the object is larger than `max_bytes`; nothing was yielded.
            StorageFailure: code `object_changed`: it was replaced while it was read.
        """

    @abstractmethod
    async def get_bytes(self, key: str, *, max_bytes: int) -> tuple[ObjectInfo, bytes] | None:
        """One version of a small object, as `swap` takes it, and its bytes; None where there is none.

        Raises:
            LimitExceeded: code `object_too_large`: more than `max_bytes`.
        """

    @abstractmethod
    async def put_bytes(self, key: str, data: bytes, *, create: bool = False) -> ObjectInfo:
        """Store `data` atomically. With `create`, only if the key is free.

        Raises:
            Conflict: code `object_exists`, with `create` only: there is an object at the key. S3's passing conflict
                (409 ConditionalRequestConflict, the key still free) is retried and never raised as one.
        """

    @abstractmethod
    async def swap(self, key: str, data: bytes, expected: ObjectInfo) -> ObjectInfo:
        """Compare and swap: replace the object if it is still the version that `expected` (from this store) describes.

        Raises:
            Conflict: code `precondition_failed`: it was replaced or removed; passing conflicts as in `put_bytes`.
            StorageFailure: code `conditional_put_unsupported`: this store cannot.
        """

    @abstractmethod
    async def put_file(self, key: str, path: Path, *, create: bool = False) -> ObjectInfo:
        """Store a file atomically, streamed (multipart on S3); the stored size is checked against the file's.

        With `create`, only if the key is free: one condition with the write, except in a multipart upload to S3, where
        the key is looked at before the first part and before the last.

        Raises:
            Conflict: code `object_exists`, with `create` only.
        """

    def takes_growing(self, size: int) -> bool:
        """Whether a file of `size` bytes can be uploaded while it is being written (`put_growing`)."""
        return False

    async def put_growing(self, key: str, file: Growing, *, create: bool = False) -> ObjectInfo:
        """`put_file` of a file that is still being written: once, without retries over the whole file.

        Nothing appears at the key before the file is verified, and nothing stays of an upload that fails before. The
        stored size is not checked: read the object back.

        Raises:
            Conflict: code `object_exists`, with `create` only.
            Spoiled: by the file's writer.
        """
        await file.reach(file.size)
        return await self.put_file(key, file.path, create=create)

    @abstractmethod
    def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        """Objects below `prefix` + "/", in key order (all objects for `""`); the object named `prefix` is not one."""

    @abstractmethod
    async def delete(self, key: str) -> None:
        """Remove the object; a missing one is fine."""

    @abstractmethod
    async def check(self) -> None:
        """Prove that the root is there and may be listed (a directory that can still be created counts)."""

    async def prove(self, prefix: str = "", *, swap: bool = False) -> Proof:
        """Prove below `prefix` that objects can be created, only once, read back unaltered and removed.

        Each proof uses an object of its own, so any number may run at once, and removes what killed ones left.

        Args:
            swap: prove compare-and-swap as well.

        Raises:
            UsageError: code `location_not_writable`: nothing can be written at a local directory.
            StorageFailure: code `conditional_put_unsupported`: a condition is refused, or accepted and not kept.
            IntegrityError: other bytes came back.
        """
        folder = f"{prefix}/{PROBES}" if prefix else PROBES
        name, data = f"probe-{secrets.token_hex(8)}", secrets.token_bytes(32)
        key = f"{folder}/{name}"
        try:
            stored = await self._condition_kept(self.put_bytes(key, data, create=True), kept=True)
            await self._condition_kept(self.put_bytes(key, b"a second create", create=True), kept=False)
            if await self.read_back(key) != (len(data), hashlib.sha256(data).hexdigest()):
                raise IntegrityError("the store gives back other bytes than were written to it")
            if swap:
                await self._condition_kept(self.swap(key, b"swapped", stored), kept=True)
                await self._condition_kept(self.swap(key, b"swapped twice", stored), kept=False)
            return Proof(case_sensitive=await self.head(f"{folder}/{name.upper()}") is None)
        finally:
            await self._remove_probes(folder, key)

    async def _remove_probes(self, folder: str, own: str) -> None:
        """Remove our probe, and old ones that a kill left; their age is by the store's clock, which dated ours."""
        listed: list[ObjectInfo] = []
        with suppress(StorageFailure):  # some may write and neither delete nor list
            listed = [info async for info in self.list(folder)]
        with suppress(StorageFailure):
            await self.delete(own)
            now = max((info.modified for info in listed if info.key == own and info.modified), default=0.0)
            for info in listed:
                if info.key != own and info.modified is not None and info.modified < now - PROBE_KEPT_S:
                    await self.delete(info.key)

    async def _condition_kept(self, put: Awaitable[ObjectInfo], *, kept: bool) -> ObjectInfo:
        """Await a conditional put whose condition is true (`kept`) or false."""
        try:
            stored = await put
        except Conflict:
            if not kept:
                return ObjectInfo("", 0)
            raise no_conditional_put("the store refuses a conditional PUT although its condition is true") from None
        if not kept:
            raise no_conditional_put("the store overwrites an object although the condition of the PUT is false")
        return stored

    async def read_back(self, key: str, size: int = 0) -> tuple[int, str]:
        """`hash_object` of an object that this process has just written: a 404 is a passing fault and retried.

        Args:
            size: bytes that are expected; a large object may then be read in several places at once.

        Raises:
            StorageFailure: code `storage_unavailable`: it did not appear.
        """
        return await self.hash_object(key)

    async def hash_object(self, key: str) -> tuple[int, str]:
        """Size in bytes and SHA-256 of what a reader gets back, by streaming it."""
        digest, size = hashlib.sha256(), 0
        hashing: asyncio.Future[None] | None = None  # of one chunk, while the next one arrives
        try:
            async with aclosing(self.get_stream(key)) as chunks:
                async for chunk in chunks:
                    size += len(chunk)
                    if hashing is not None:
                        await hashing
                        hashing = None
                    if len(chunk) <= HASHED_AT_ONCE:
                        digest.update(chunk)
                    else:
                        hashing = asyncio.ensure_future(files.in_thread(digest.update, chunk))
        finally:
            if hashing is not None:
                await hashing
        return size, digest.hexdigest()

    async def download(
        self, key: str, path: Path, *, max_bytes: int | None = None, timeout_s: float | None = None
    ) -> Downloaded:
        """Fetch one object into a file: sibling `.part`, fsync, atomic replace. On failure `path` is untouched.

        Raises:
            LimitExceeded: code `object_too_large`, with both numbers, before a byte is written.
            StorageFailure: code `storage_timeout` after `timeout_s` seconds.
            IntegrityError: the file is not as long as the bytes received.
        """
        part = files.part_of(path)
        try:
            async with asyncio.timeout(timeout_s):
                done = await self._fetch(key, part, max_bytes)
                await files.in_thread(files.publish, part, path)
        except TimeoutError:
            raise StorageFailure(f"the object was not fetched within {timeout_s:g} s", code="storage_timeout") from None
        except OSError as error:
            raise StorageFailure(f"cannot write the downloaded file: {files.reason(error)}") from None
        finally:
            await files.in_thread(files.discard, part)
        return done

    async def _fetch(self, key: str, part: Path, max_bytes: int | None) -> Downloaded:
        digest, size = hashlib.sha256(), 0

        def write(handle: int, chunk: bytes) -> None:
            digest.update(chunk)
            files.write_all(handle, chunk)

        handle = await files.in_thread(files.create_part, part)
        try:
            async with aclosing(self.get_stream(key, max_bytes=max_bytes)) as chunks:
                async for chunk in chunks:
                    await files.in_thread(write, handle, chunk)
                    size += len(chunk)
            await files.in_thread(os.fsync, handle)
            written = os.fstat(handle).st_size
        finally:
            await files.in_thread(os.close, handle)
        if written != size:
            raise IntegrityError(f"the downloaded file has {written} bytes, received were {size}")
        return Downloaded(size, digest.hexdigest())
