"""BatchFiles: the files of one batch beside the ledger's rows, and the lock on the output root. Everything here blocks.

<output_root>/.cosmos3/lock                    held by the one service process that writes here
<output_root>/.cosmos3/ledger.sqlite           batches, samples, events (see `schema`)
<output_root>/.cosmos3/ledger/<request_id>/    request.json, response.json, uploads/
<output_root>/.cosmos3/staging/<request_id>/   inputs, while the batch runs (see `staging`)
<output_root>/<request_id>/<sample>/           artifacts
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cosmos3_serve.errors import Conflict, Cosmos3Error, NotReady, StartRefused

PRIVATE = ".cosmos3"
LOCK = "lock"
DATABASE = "ledger.sqlite"
REQUEST = "request.json"
RESPONSE = "response.json"
CHUNK_BYTES = 256 * 1024
UPLOADS = "uploads"
DISK_FULL_RETRY_S = 60.0
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def disk_error(error: OSError) -> Cosmos3Error:
    """What a failed write of the ledger means to the caller: never our traceback, always retryable later."""
    if error.errno in NO_SPACE:
        return NotReady(
            "the output root is full",
            code="disk_full",
            remedy="try again later; the operator must free space or lower --retention-bytes",
            retry_after_s=DISK_FULL_RETRY_S,
        )
    return ledger_unavailable(errno.errorcode.get(error.errno or 0, "unknown error"))


def ledger_unavailable(reason: str) -> Cosmos3Error:
    return NotReady(
        f"the ledger could not be written ({reason})",
        code="ledger_unavailable",
        remedy="try again later; the operator must look at the filesystem of the output root",
        retry_after_s=DISK_FULL_RETRY_S,
    )


def in_use() -> StartRefused:
    return StartRefused(
        "another service process uses this output root",
        code="output_root_in_use",
        remedy="stop it, or give this one its own --output-path",
    )


class RootLock:
    """Exclusive use of an output root, for as long as the process lives or until `release`."""

    def __init__(self, output_root: Path) -> None:
        """Raises StartRefused when another process holds the root, or it can't be written."""
        self._descriptor = -1
        try:
            private = output_root / PRIVATE
            private.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._descriptor = os.open(private / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise in_use() from None
        except OSError as error:
            self.release()
            raise StartRefused(
                f"the output root can't be used: {os.strerror(error.errno or 0)}",
                code="output_root_unusable",
                remedy="make --output-path a writable directory (a shared filesystem when there are several nodes)",
            ) from None

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class BatchFiles:
    """The files of one batch."""

    def __init__(self, output_root: Path, request_id: str) -> None:
        self.request_id = request_id
        self.outputs = output_root / request_id
        self.staging = output_root / PRIVATE / "staging" / request_id
        self.home = output_root / PRIVATE / "ledger" / request_id

    def create(self, request: bytes, uploads: Mapping[str, bytes]) -> None:
        """Store the request and the files that came with it, durably; the batch exists once its rows do too.

        Args:
            uploads: content by name; the names are safe.

        Raises:
            Conflict: something that the ledger doesn't know is there under this id already.
            OSError: the disk is full or failing.
        """
        if os.path.lexists(self.outputs):
            raise Conflict(
                f"request_id {self.request_id!r} is taken", code="request_id_taken", remedy="use another request_id"
            )
        remove(self.home)  # of an acceptance that came to nothing
        self.home.mkdir(parents=True, mode=0o700)
        for name, content in uploads.items():
            self.upload(name).parent.mkdir(mode=0o700, exist_ok=True)
            write_file(self.upload(name), content)
        write_file(self.home / REQUEST, request)
        sync_directory(self.home.parent)

    def upload(self, name: str) -> Path:
        return self.home / UPLOADS / name

    def upload_names(self) -> list[str]:
        try:
            return sorted(path.name for path in (self.home / UPLOADS).iterdir())
        except FileNotFoundError:
            return []

    def request(self) -> dict[str, Any]:
        request: dict[str, Any] = json.loads((self.home / REQUEST).read_bytes())
        return request

    def write_response(self, chunks: Sequence[bytes]) -> None:
        write_file(self.home / RESPONSE, *chunks)

    def response(self) -> StoredResponse:
        """Raises OSError when it can't be opened."""
        return StoredResponse(self.home / RESPONSE)

    def usage(self) -> int:
        """Bytes that the batch's files take."""
        total = 0
        for top in (self.home, self.outputs):
            for folder, _, names in os.walk(top):
                for name in names:
                    try:
                        total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118
                    except OSError:
                        continue
        return total

    def remove_sample(self, name: str) -> None:
        """Clear what an earlier run of a sample left, so that a rerun starts from nothing."""
        remove(self.outputs / name)

    def remove_home(self) -> None:
        remove(self.home)

    def remove_all(self) -> None:
        for path in (self.outputs, self.staging, self.home):
            remove(path)


class StoredResponse:
    """A response as it is stored, opened once: what retention removes meanwhile stays readable to its end."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self.size = os.fstat(self._file.fileno()).st_size

    async def chunks(self) -> AsyncIterator[bytes]:
        """The bytes in pieces of `CHUNK_BYTES`, read in threads; once."""
        with self._file:
            while chunk := await asyncio.to_thread(self._file.read, CHUNK_BYTES):
                yield chunk

    async def read(self) -> bytes:
        """All of it."""
        return b"".join([chunk async for chunk in self.chunks()])


def remove(path: Path) -> None:
    """Remove a tree; never follows a link; what is not there is fine."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def write_all(descriptor: int, data: bytes) -> None:
    """`write` until everything is written."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_directory(path: Path) -> None:
    """Make renames and new names inside `path` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, *chunks: bytes) -> None:
    """Write a whole file so that a reader, or a crash, sees either all of it or none; durable on return."""
    part = path.with_name(path.name + ".part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        try:
            for chunk in chunks:
                write_all(descriptor, chunk)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
