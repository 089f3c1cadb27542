"""Download artifacts into the local spool: streamed, verified while streaming, resumed by Range, few at a time.

Memory is one piece of `PIECE_BYTES` for each download in flight. A cut is continued where it stopped, also by a later
process: beside the part file lies the ETag it came under, and a part without one is thrown away, because without
If-Range nothing says that the rest would fit.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import httpx

from cosmos3_serve.client import problem
from cosmos3_serve.client.http import Service, read_all
from cosmos3_serve.contract.records import Artifact
from cosmos3_serve.errors import ContractViolation, Cosmos3RayServeError, IntegrityError, StorageFailure
from cosmos3_serve.retry import PASSING_READ_STATUSES, PATIENT, Attempts, RetryPolicy, retry_after
from cosmos3_serve.storage.files import in_thread, publish, write_all

PIECE_BYTES = 1024 * 1024
STALL_S = 30.0  # without one byte
WRONG_BYTES_TRIES = 3  # whole downloads whose hash may differ before the artifact is given up


class Transfer:
    """Downloads of one batch. `on_bytes` hears of every verified-to-be byte, negative when some are thrown away."""

    def __init__(
        self,
        service: Service,
        spool: Path,
        *,
        on_bytes: Callable[[int], None] = lambda count: None,
        retry: RetryPolicy = PATIENT,
    ) -> None:
        self._service, self._spool, self._on_bytes, self._retry = service, spool, on_bytes, retry

    def path_of(self, artifact: Artifact) -> Path:
        """Where the verified file lies; every part of an artifact path is a safe name (checked by the contract)."""
        return self._spool / artifact.path

    async def fetch(self, artifact: Artifact) -> Path:
        """The artifact's file in the spool, size and SHA-256 as declared; kept files are verified again.

        Raises:
            IntegrityError: the bytes differ from the declaration, also when fetched anew.
            Cosmos3RayServeError: code `artifact_missing`, or another refusal of the service.
            Incomplete: the deadline passed.
            StorageFailure: code `spool_failed`: the local disk.
        """
        path = self.path_of(artifact)
        try:
            if await in_thread(_matches, path, artifact):
                self._on_bytes(artifact.bytes)
                return path
            await in_thread(_make_room, path)
            for tries in range(WRONG_BYTES_TRIES):
                part = _Part(path, artifact)
                if await self._fill(part, resume=tries == 0):
                    await in_thread(part.finish)
                    return path
                self._on_bytes(-part.size)
                await in_thread(part.discard)
        except OSError as error:
            raise StorageFailure(
                f"the spool cannot be written: {error.strerror or type(error).__name__}",
                remedy="make room, or name another folder with --journal-dir, and run again with --resume",
                code="spool_failed",
            ) from None
        raise IntegrityError(f"artifact integrity mismatch for {artifact.path}")

    async def _fill(self, part: _Part, *, resume: bool) -> bool:
        """Fetch until the part is complete; False when its hash is wrong."""
        await in_thread(part.open, resume)
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
                    wait = attempts.wait_s(asked)
                    if wait is None:
                        raise Cosmos3RayServeError(f"{doing}: the service {why}", code="download_failed")
                    await self._service.pause(wait, doing, why)
        finally:
            await in_thread(part.close)
        return part.digest.hexdigest() == part.artifact.sha256

    async def _once(self, part: _Part) -> float:
        """One request; returns the seconds that the service asks to wait when it would not answer."""
        headers = {}
        if part.size and part.etag:
            headers = {"Range": f"bytes={part.size}-", "If-Range": part.etag}
        url = "/v1/artifacts/" + quote(part.artifact.path)
        async with self._service.stream(url, headers=headers, read_s=STALL_S) as response:
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
                await in_thread(part.restart, etag)
                if status != 200:
                    part.etag = None
                    return 0.0
            async for piece in self._pieces(response, part):
                await in_thread(part.write, piece)
                self._on_bytes(len(piece))
        return 0.0

    async def _pieces(self, response: httpx.Response, part: _Part) -> AsyncIterator[bytes]:
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise ContractViolation("the service encoded an artifact although identity was asked for")
        room, held = part.artifact.bytes - part.size, bytearray()
        try:
            async for chunk in response.aiter_raw():
                held += chunk
                if len(held) > room:
                    raise IntegrityError(
                        f"artifact integrity mismatch for {part.artifact.path}: "
                        f"more than the declared {part.artifact.bytes} bytes"
                    )
                if len(held) >= PIECE_BYTES:
                    yield bytes(held)
                    room -= len(held)
                    held.clear()
        except httpx.TransportError:
            if held:  # what arrived before the cut is kept
                yield bytes(held)
            raise
        if held:
            yield bytes(held)


class _Part:
    """The file under way, its running hash and the ETag it came under. Blocking."""

    def __init__(self, path: Path, artifact: Artifact) -> None:
        self.path, self.artifact = path, artifact
        self.file, self.tag = path.with_name(path.name + ".~part"), path.with_name(path.name + ".~etag")
        self.size, self.digest, self.etag = 0, hashlib.sha256(), None
        self._handle = -1

    etag: str | None

    def open(self, resume: bool) -> None:
        self._handle = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        kept = os.fstat(self._handle).st_size
        with suppress(OSError):
            self.etag = self.tag.read_text("utf-8") or None
        if not resume or self.etag is None or kept > self.artifact.bytes:
            self.restart(None)
            return
        while chunk := os.read(self._handle, PIECE_BYTES):
            self.digest.update(chunk)
            self.size += len(chunk)

    def restart(self, etag: str | None) -> None:
        os.ftruncate(self._handle, 0)
        os.lseek(self._handle, 0, os.SEEK_SET)
        self.size, self.digest, self.etag = 0, hashlib.sha256(), _strong(etag)
        if self.etag:
            self.tag.write_text(self.etag, "utf-8")
        else:
            self.tag.unlink(missing_ok=True)

    def write(self, piece: bytes) -> None:
        write_all(self._handle, piece)
        self.digest.update(piece)
        self.size += len(piece)

    def close(self) -> None:
        os.close(self._handle)

    def finish(self) -> None:
        publish(self.file, self.path)
        self.tag.unlink(missing_ok=True)

    def discard(self) -> None:
        self.file.unlink(missing_ok=True)
        self.tag.unlink(missing_ok=True)


def _matches(path: Path, artifact: Artifact) -> bool:
    try:
        if path.stat().st_size != artifact.bytes:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == artifact.sha256
    except FileNotFoundError:
        return False


def _make_room(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)


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
