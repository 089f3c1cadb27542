"""An object store in memory that keeps every condition, for orders of two clients that no real server would repeat.

Each request first gives way a random number of times (seeded), so that one seed is one order; a client that is killed
raises `Killed` at its n-th request, before or after it was carried out.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

from cosmos3_serve.errors import Conflict, LimitExceeded, NotFound
from cosmos3_serve.storage.store import ObjectInfo, ObjectStore


class Killed(BaseException):
    """The client's process ended."""


class Bucket:
    """What all clients see."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.versions = 0

    def put(self, key: str, data: bytes) -> ObjectInfo:
        self.versions += 1
        self.objects[key] = (data, f'"{self.versions}"')
        return self.info(key)

    def info(self, key: str) -> ObjectInfo:
        data, etag = self.objects[key]
        return ObjectInfo(key, len(data), etag, 0.0)


class MemoryStore(ObjectStore):
    """One client's connection to the bucket; `kill_at` is the number of the request that it does not survive."""

    def __init__(self, bucket: Bucket, seed: int, kill_at: int | None = None) -> None:
        self.bucket, self._random, self._kill_at, self.requests = bucket, random.Random(seed), kill_at, 0
        self._gives_way = self._random.choice((2, 6, 60))
        self.written: list[str] = []

    async def _turn(self) -> None:
        self.requests += 1
        for _ in range(self._random.randrange(self._gives_way)):
            await asyncio.sleep(0)
        if self.requests == self._kill_at and self._random.random() < 0.5:
            raise Killed

    def _done(self) -> None:
        if self.requests == self._kill_at:
            raise Killed

    async def head(self, key: str) -> ObjectInfo | None:
        await self._turn()
        self._done()
        return self.bucket.info(key) if key in self.bucket.objects else None

    async def get_stream(
        self, key: str, *, start: int = 0, chunk_size: int = 1024, max_bytes: int | None = None
    ) -> AsyncIterator[bytes]:
        await self._turn()
        self._done()
        if key not in self.bucket.objects:
            raise NotFound("there is no such object", code="object_not_found")
        yield self.bucket.objects[key][0][start:]

    async def get_bytes(self, key: str, *, max_bytes: int) -> tuple[ObjectInfo, bytes] | None:
        await self._turn()
        self._done()
        if key not in self.bucket.objects:
            return None
        data = self.bucket.objects[key][0]
        if len(data) > max_bytes:
            raise LimitExceeded("too large", code="object_too_large")
        return self.bucket.info(key), data

    async def put_bytes(self, key: str, data: bytes, *, create: bool = False) -> ObjectInfo:
        await self._turn()
        if create and key in self.bucket.objects:
            raise Conflict("the object exists already", code="object_exists")
        info = self.bucket.put(key, data)
        self.written.append(key)
        self._done()
        return info

    async def swap(self, key: str, data: bytes, expected: ObjectInfo) -> ObjectInfo:
        await self._turn()
        if key not in self.bucket.objects or self.bucket.info(key).etag != expected.etag:
            raise Conflict("replaced meanwhile", code="precondition_failed")
        info = self.bucket.put(key, data)
        self._done()
        return info

    async def put_file(self, key: str, path: Path, *, create: bool = False) -> ObjectInfo:
        return await self.put_bytes(key, path.read_bytes(), create=create)

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        await self._turn()
        for key in sorted(self.bucket.objects):
            if not prefix or key.startswith(f"{prefix}/"):
                yield self.bucket.info(key)

    async def delete(self, key: str) -> None:
        await self._turn()
        self.bucket.objects.pop(key, None)
        self._done()

    async def check(self) -> None: ...

    async def hash_object(self, key: str) -> tuple[int, str]:
        data = b"".join([chunk async for chunk in self.get_stream(key)])
        return len(data), hashlib.sha256(data).hexdigest()
