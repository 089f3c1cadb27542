"""Upload one large file in parts, few or many at a time as the link bears, also while it is still being written.

Nobody sees an object before its last part is in and the upload is completed.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace

import obstore

from cosmos3_serve.retry import Attempts, RetryPolicy
from cosmos3_serve.storage import files
from cosmos3_serve.storage.faults import translate
from cosmos3_serve.storage.growing import Growing
from cosmos3_serve.storage.pace import MIB, Pace, Room
from cosmos3_serve.storage.retry import after
from cosmos3_serve.storage.s3_client import S3Clients

PART_BYTES = 8 * MIB
READ_BYTES = 4 * MIB
PART_CONCURRENCY = 4
MAX_PARTS = 10_000  # S3's own limit
ABORT_WAIT_S = 10.0

BeforeLast = Callable[[], Awaitable[None]]


class Multipart:
    """Uploads of one bucket. The client library repeats single parts, we the whole file, then with fewer at once."""

    def __init__(self, clients: S3Clients, pace: Pace, policy: RetryPolicy) -> None:
        self._clients, self._pace, self._policy = clients, pace, policy

    async def upload(
        self, key: str, file: Growing, before_last: BeforeLast, *, concurrency: int = PART_CONCURRENCY
    ) -> str | None:
        """Store the file; the object's entity tag. A failed or cancelled upload leaves no parts behind.

        Args:
            before_last: awaited before the last bytes are sent; what it raises ends the upload.
            concurrency: parts in flight at most.

        Raises:
            StorageFailure, NotFound: storage would not, or the file cannot be read.
            Spoiled: by the file's writer.
        """
        part = max(PART_BYTES, -(-file.size // MAX_PARTS))
        attempts = Attempts(replace(self._policy, deadline_s=math.inf))  # each try has its time limit
        while True:
            parallel = self._pace.parallel(min(concurrency, -(-file.size // part)))
            try:
                async with self._pace.admitted(parallel, parallel * part) as room:
                    return await self._once(key, Source(file, before_last, room), part, parallel)
            except Exception as error:
                failure = error
            await after(failure, attempts)

    async def _once(self, key: str, source: Source, part: int, parallel: int) -> str | None:
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
            if source.error is not None:
                raise source.error from None
            raise translate(error, "upload the file") from None
        finally:
            await source.close()


class Source:
    """A file as the asynchronous iterator that the client library pulls from; `stop` makes the pull fail."""

    def __init__(self, file: Growing, before_last: BeforeLast, room: Room) -> None:
        self._file, self._before_last, self._room = file, before_last, room
        self._position, self._handle = 0, -1
        self._pulling: asyncio.Task[bytes] | None = None
        self._stopped = False
        self.error: Exception | None = None

    def __aiter__(self) -> Source:
        return self

    async def __anext__(self) -> bytes:
        if self._stopped:
            raise InterruptedError("the upload was cancelled")
        if self._position == self._file.size:
            raise StopAsyncIteration
        self._pulling = asyncio.ensure_future(self._pull())
        try:
            return await self._pulling
        except asyncio.CancelledError:
            raise InterruptedError("the upload was cancelled") from None
        except Exception as error:
            self.error = error
            raise

    async def _pull(self) -> bytes:
        stop = min(self._position + READ_BYTES, self._file.size)
        if not self._file.reaches(stop):
            await self._room.outside(self._file.reach(stop))
        if self._handle < 0:
            self._handle = await files.in_thread(os.open, self._file.path, os.O_RDONLY | os.O_CLOEXEC)
        if stop == self._file.size:
            await self._before_last()
        chunk = await files.in_thread(files.read_all, self._handle, stop - self._position, self._position)
        self._file.reaches(stop)  # else it was truncated meanwhile
        self._position = stop
        return chunk

    def stop(self) -> None:
        self._stopped = True
        if self._pulling is not None:
            self._pulling.cancel()

    async def close(self) -> None:
        if self._pulling is not None:
            self._pulling.cancel()
            await asyncio.wait([self._pulling])
        if self._handle >= 0:
            os.close(self._handle)
