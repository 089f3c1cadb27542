"""The interface to stored objects, streamed with bounded memory: `bucket.py` and `directory.py` implement it.

`download` and `hash_object` are written once here, over `get_stream`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from cosmos3_serve.errors import IntegrityError, StorageFailure
from cosmos3_serve.storage import files

CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store says about one object: full key, size in bytes, entity tag where it has one, and when it was last
    written (Unix seconds of the store's clock; None after a write, which does not tell)."""

    key: str
    size: int
    etag: str | None = None
    modified: float | None = None


@dataclass(frozen=True, slots=True)
class Downloaded:
    """A finished download: bytes written and their SHA-256 (64 lower hex)."""

    size: int
    sha256: str


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
    async def put_bytes(self, key: str, data: bytes, *, create: bool = False) -> ObjectInfo:
        """Store `data` atomically. With `create`, only if the key is free.

        Raises:
            Conflict: code `object_exists`, with `create` only.
        """

    @abstractmethod
    async def put_file(self, key: str, path: Path) -> ObjectInfo:
        """Store a file atomically, streamed (multipart on S3); the stored size is checked against the file's."""

    @abstractmethod
    def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        """Objects below `prefix` + "/", in key order (all objects for `""`); the object named `prefix` is not one."""

    @abstractmethod
    async def delete(self, key: str) -> None:
        """Remove the object; a missing one is fine."""

    @abstractmethod
    async def check(self) -> None:
        """Prove that the root is there and may be listed (a directory that can still be created counts)."""

    async def prove_create(self, key: str) -> None:  # noqa: B027 - most stores need no proof
        """Prove that `put_bytes(create=True)` is kept, on a `key` for this alone; a local filesystem keeps it always.

        Raises:
            StorageFailure: code `conditional_put_unsupported`: refused, or accepted and not kept.
        """

    async def hash_object(self, key: str) -> tuple[int, str]:
        """Size in bytes and SHA-256 of what a reader gets back, by streaming it."""
        digest, size = hashlib.sha256(), 0
        async with aclosing(self.get_stream(key)) as chunks:
            async for chunk in chunks:
                await files.in_thread(digest.update, chunk)
                size += len(chunk)
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
