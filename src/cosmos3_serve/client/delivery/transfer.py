"""Download artifacts into the local spool: streamed, verified while streaming, resumed by Range, few at a time.

Memory is two pieces of `PIECE_BYTES` for each download in flight: one arrives while the one before is hashed and
written. A cut is continued where it stopped, also by a later
process: beside the part file lies the ETag it came under, and a part without one is thrown away, because without
If-Range nothing says that the rest would fit.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import httpx

from cosmos3_serve.client import problem
from cosmos3_serve.client.delivery.reading import chunks
from cosmos3_serve.client.http import Service, read_all
from cosmos3_serve.contract.records import Artifact
from cosmos3_serve.errors import ContractViolation, Cosmos3RayServeError, IntegrityError, StorageFailure
from cosmos3_serve.retry import PASSING_READ_STATUSES, PATIENT, Attempts, RetryPolicy, retry_after
from cosmos3_serve.storage.files import in_thread, write_all
from cosmos3_serve.storage.growing import Growing

PIECE_BYTES = 1024 * 1024
STALL_S = 30.0  # without one byte
WRONG_BYTES_TRIES = 3  # whole downloads whose hash may differ before the artifact is given up


class Transfer:
    """Downloads of one batch. `on_bytes` hears of every verified-to-be byte, negative when some are thrown away;
    `on_trouble` of every request that failed."""

    def __init__(
        self,
        service: Service,
        spool: Path,
        *,
        on_bytes: Callable[[int], None] = lambda count: None,
        on_trouble: Callable[[], None] = lambda: None,
        retry: RetryPolicy = PATIENT,
    ) -> None:
        self._service, self._spool, self._on_bytes, self._retry = service, spool, on_bytes, retry
        self._on_trouble = on_trouble

    def path_of(self, artifact: Artifact) -> Path:
        """Where the verified file lies; every part of an artifact path is a safe name (checked by the contract)."""
        return self._spool / artifact.path

    def part_of(self, artifact: Artifact) -> Path:
        """Where it lies until then."""
        return part_of(self.path_of(artifact))

    async def fetch(self, artifact: Artifact, growing: Growing | None = None) -> Path:
        """The artifact's file in the spool, size and SHA-256 as declared; kept files are verified again.

        Args:
            growing: told of each byte written to the file under way; spoiled if that begins anew.

        Raises:
            IntegrityError: the bytes differ from the declaration, also when fetched anew.
            Cosmos3RayServeError: code `artifact_missing`, or another refusal of the service.
            Incomplete: the deadline passed.
            StorageFailure: code `spool_failed`: the local disk.
        """
        path = self.path_of(artifact)
        try:
            for tries in range(WRONG_BYTES_TRIES):
                part = _Part(path, artifact, growing)
                if await in_thread(part.prepare, first=tries == 0):
                    self._on_bytes(artifact.bytes)
                    part.told_whole()
                    return path
                if await self._fill(part):
                    return path
                growing = None  # spoiled: of wrong bytes
        except OSError as error:
            raise StorageFailure(
                f"the spool cannot be written: {error.strerror or type(error).__name__}",
                remedy="make room, or name another folder with --journal-dir, and run again with --resume",
                code="spool_failed",
            ) from None
        raise IntegrityError(f"artifact integrity mismatch for {artifact.path}")

    async def _fill(self, part: _Part) -> bool:
        """Fetch until the part is complete, then give it its name; False, and nothing left, when its hash is wrong."""
        part.told()
        self._on_bytes(part.size)
        attempts, best = Attempts(self._retry, self._service.rng.random), part.size
        doing = f"downloading {part.artifact.path}"
        try:
            while part.size < part.artifact.bytes:
                asked = 0.0
                try:
                    asked = await self._once(part)
                    why = "ended the download early"
                except httpx.TransportError as error:
                    why = problem.printable(str(error)) or type(error).__name__
                if part.size > best:  # further than ever, not just further than after a restart
                    best = part.size
                    attempts.progressed()
                if part.size < part.artifact.bytes:
                    self._on_trouble()
                    wait = attempts.wait_s(asked)
                    if wait is None:
                        raise Cosmos3RayServeError(f"{doing}: the service {why}", code="download_failed")
                    await self._service.pause(wait, doing, why)
        except BaseException:
            if not part.closed:
                await in_thread(part.close)
            raise
        if part.right if part.closed else await in_thread(part.finish):
            part.told_whole()
            return True
        part.spoil()
        self._on_bytes(-part.size)
        return False

    async def _once(self, part: _Part) -> float:
        """One request; returns the seconds that the service asks to wait when it would not answer."""
        headers = {}
        if part.size and part.etag:
            headers = {"Range": f"bytes={part.size}-", "If-Range": part.etag}
        url = "/v1/artifacts/" + quote(part.artifact.path)
        async with (
            self._service.lane() as client,
            self._service.stream(url, headers=headers, read_s=STALL_S, client=client) as response,
        ):
            status = response.status_code
            if status in PASSING_READ_STATUSES:
                await read_all(response, PIECE_BYTES)
                return retry_after(response.headers) or 0.0
            if status not in (200, 206, 416):
                raise _refused(part.artifact, status, await read_all(response, PIECE_BYTES))
            etag = response.headers.get("ETag")
            fits = status == 206 and bool(headers) and _starts_at(response, part) and etag in (None, part.etag)
            if not fits:
                # 200, or a 206 or 416 that does not continue what we hold: from the start, if at all.
                self._on_bytes(-part.size)
                part.begin_anew(etag if status == 200 else None)
                if status != 200:
                    return 0.0
            await self._receive(response, part)
        return 0.0

    async def _receive(self, response: httpx.Response, part: _Part) -> None:
        """Hash and write one piece while the next one arrives."""
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise ContractViolation("the service encoded an artifact although identity was asked for")
        room, held, count = part.artifact.bytes - part.size, list[bytes](), 0
        writing: asyncio.Future[None] | None = None

        async def write() -> None:
            nonlocal writing, held, count
            if writing is not None:
                await writing
                writing = None
            if held:
                writing = asyncio.ensure_future(self._write(part, held, count))
                held, count = [], 0

        try:
            async for chunk in chunks(response, read_s=STALL_S):
                held.append(chunk)
                count += len(chunk)
                room -= len(chunk)
                if room < 0:
                    raise IntegrityError(
                        f"artifact integrity mismatch for {part.artifact.path}: "
                        f"more than the declared {part.artifact.bytes} bytes"
                    )
                if count >= PIECE_BYTES:
                    await write()
        except httpx.TransportError:
            await write()  # what arrived before the cut is kept
            raise
        else:
            await write()
        finally:
            if writing is not None:
                await writing

    async def _write(self, part: _Part, pieces: list[bytes], count: int) -> None:
        await in_thread(part.write, pieces)
        part.told()
        self._on_bytes(count)


class _Part:
    """The file under way, its running hash and the ETag it came under. Blocking, but for what only tells or notes."""

    def __init__(self, path: Path, artifact: Artifact, growing: Growing | None) -> None:
        self.path, self.artifact, self.growing = path, artifact, growing
        self.file, self.tag = part_of(path), path.with_name(path.name + ".~etag")
        self.size, self.digest, self.etag = 0, hashlib.sha256(), None
        self._handle, self._anew = -1, False
        self.closed = self.right = False

    etag: str | None

    def prepare(self, first: bool) -> bool:
        """Whether the finished file is there and right; else open the part, with what an earlier process left in it."""
        if first:
            if _matches(self.path, self.artifact):
                return True
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.unlink(missing_ok=True)
        self._handle = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        kept = os.fstat(self._handle).st_size
        with suppress(OSError):
            self.etag = self.tag.read_text("utf-8") or None
        if not first or self.etag is None or kept > self.artifact.bytes:
            self._truncate(None)
            return False
        while chunk := os.read(self._handle, PIECE_BYTES):
            self.digest.update(chunk)
            self.size += len(chunk)
        return False

    def begin_anew(self, etag: str | None) -> None:
        """Drop what there is, with the next write; what follows comes under `etag`."""
        if self.size:
            self.spoil()
        self.size, self.digest, self.etag, self._anew = 0, hashlib.sha256(), _strong(etag), True

    def _truncate(self, etag: str | None) -> None:
        os.ftruncate(self._handle, 0)
        os.lseek(self._handle, 0, os.SEEK_SET)
        # Without a tag a part is not continued, which is no loss where it is one piece.
        if etag and self.artifact.bytes > PIECE_BYTES:
            self.tag.write_text(etag, "utf-8")
        else:
            self.tag.unlink(missing_ok=True)
        self.etag, self._anew = etag, False

    def write(self, pieces: list[bytes]) -> None:
        if self._anew:
            self._truncate(self.etag)
        for piece in pieces:
            write_all(self._handle, piece)
            self.digest.update(piece)
            self.size += len(piece)
        if self.size == self.artifact.bytes:
            self.finish()

    def told(self) -> None:
        """Tell who reads along."""
        if self.growing is not None:
            self.growing.write(self.size)

    def told_whole(self) -> None:
        if self.growing is not None:
            self.growing.moved(self.path)
            self.growing.write(self.artifact.bytes)

    def spoil(self) -> None:
        if self.growing is not None:
            self.growing.spoil()
            self.growing = None

    def close(self) -> None:
        self.closed = True
        os.close(self._handle)

    def finish(self) -> bool:
        """Give the file its name if its hash is right, else remove it. Not synced: a later process hashes it again."""
        self.close()
        self.right = self.digest.hexdigest() == self.artifact.sha256
        if self.right:
            self.file.replace(self.path)
        else:
            self.file.unlink(missing_ok=True)
        self.tag.unlink(missing_ok=True)
        return self.right


def part_of(path: Path) -> Path:
    """Where a download lies before it is complete and verified."""
    return path.with_name(path.name + ".~part")


def _matches(path: Path, artifact: Artifact) -> bool:
    try:
        if path.stat().st_size != artifact.bytes:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == artifact.sha256
    except FileNotFoundError:
        return False


def _strong(etag: str | None) -> str | None:
    """A weak tag does not promise equal bytes, so it cannot join two halves."""
    return etag if etag and etag.startswith('"') else None


def _starts_at(response: httpx.Response, part: _Part) -> bool:
    expected = f"bytes {part.size}-{part.artifact.bytes - 1}/{part.artifact.bytes}"
    return bool(response.headers.get("Content-Range", "").strip() == expected)


def _refused(artifact: Artifact, status: int, body: bytes) -> Exception:
    if status in (404, 410):
        return Cosmos3RayServeError(
            f"artifact {artifact.path} is no longer at the service ({status})",
            remedy="its retention may have removed it; submit the batch again under a new request id",
            code="artifact_missing",
        )
    return problem.failure(status, body)
