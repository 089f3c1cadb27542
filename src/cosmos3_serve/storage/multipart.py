"""Upload one large file in parts, few or many at a time as the link bears."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import IO

import obstore

from cosmos3_serve.retry import Attempts, RetryPolicy
from cosmos3_serve.storage import files
from cosmos3_serve.storage.faults import translate
from cosmos3_serve.storage.pace import MIB, Pace
from cosmos3_serve.storage.retry import after
from cosmos3_serve.storage.s3_client import S3Clients

PART_BYTES = 8 * MIB
READ_BYTES = 4 * MIB
PART_CONCURRENCY = 4
MAX_PARTS = 10_000  # S3's own limit
ABORT_WAIT_S = 10.0


class Multipart:
    """Uploads of one bucket. The client library repeats single parts, we the whole file, then with fewer at once."""

    def __init__(self, clients: S3Clients, pace: Pace, policy: RetryPolicy) -> None:
        self._clients, self._pace, self._policy = clients, pace, policy

    async def upload(self, key: str, path: Path, size: int) -> str | None:
        """Store the file of `size` bytes; its entity tag. A failed or cancelled upload leaves no parts behind.

        Raises:
            StorageFailure, NotFound: storage would not, or the file cannot be read.
        """
        part = max(PART_BYTES, -(-size // MAX_PARTS))
        attempts = Attempts(replace(self._policy, deadline_s=math.inf))  # each try has its time limit
        while True:
            parallel = self._pace.parallel(min(PART_CONCURRENCY, -(-size // part)))
            try:
                async with self._pace.admitted(parallel, parallel * part):
                    return await self._once(key, path, part, parallel)
            except Exception as error:
                failure = error
            await after(failure, attempts)

    async def _once(self, key: str, path: Path, part: int, parallel: int) -> str | None:
        source = Source(path)
        client = self._clients.of(self._pace.time_limit_s(parallel * part), retries=True)
        upload = asyncio.ensure_future(
            obstore.put_async(client, key, source, use_multipart=True, chunk_size=part, max_concurrency=parallel)
        )
        try:
            return (await asyncio.shield(upload))["e_tag"]
        except asyncio.CancelledError:
            # Only the library knows the upload's id: it aborts it when its source fails, so let the source fail.
            source.stop()
            await asyncio.wait([upload], timeout=ABORT_WAIT_S)
            upload.cancel()
            raise
        except Exception as error:
            if isinstance(source.error, OSError):
                raise files.failure("read the file to upload", source.error) from None
            raise translate(error, "upload the file") from None
        finally:
            source.close()


class Source:
    """A file as the iterator that the client library pulls from its own threads; `stop` makes the next pull fail."""

    def __init__(self, path: Path) -> None:
        self._path, self._stopped = path, False
        self._file: IO[bytes] | None = None
        self.error: Exception | None = None

    def __iter__(self) -> Source:
        return self

    def __next__(self) -> bytes:
        try:
            if self._stopped:
                raise InterruptedError("the upload was cancelled")
            if self._file is None:
                self._file = self._path.open("rb")
            chunk = self._file.read(READ_BYTES)
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
