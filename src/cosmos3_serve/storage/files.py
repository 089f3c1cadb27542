"""Durable file writes: a hidden sibling first, fsync, then one atomic rename. Blocking; call through `in_thread`."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from cosmos3_serve.errors import Conflict, NotFound, StorageFailure

P = ParamSpec("P")
T = TypeVar("T")
_PART = re.compile(r"\.[0-9a-f]{32}\.part\Z")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a short blocking call off the event loop, and wait for its end even when cancelled.

    `asyncio.to_thread` alone would leave the thread writing to a descriptor that its cancelled caller then closes.
    """
    task = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not report it as lost
        raise


def part_of(path: Path) -> Path:
    """A fresh hidden sibling: two writers of one path never share it."""
    return path.with_name(f".{uuid.uuid4().hex}.part")


def is_part(name: str) -> bool:
    return bool(_PART.match(name))


def create_part(part: Path) -> int:
    """Open a new file for writing; it must not exist. The process's umask decides who else may read it."""
    return os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)


def write_all(handle: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def make_parents(path: Path) -> None:
    """Create the missing directories above `path`, each entry on disk before the next is used."""
    missing = []
    parent = path.parent
    while not parent.is_dir():
        missing.append(parent)
        parent = parent.parent
    for directory in reversed(missing):
        try:
            directory.mkdir()
        except FileExistsError:
            if not directory.is_dir():  # a file is in the way; that is no conflict between two writers of one name
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
        sync_directory(directory.parent)


def publish(part: Path, path: Path, *, create: bool = False) -> None:
    """Give a finished part its name; with `create`, only if the name is free.

    Raises:
        FileExistsError: with `create`, the name is taken.
    """
    if create:
        try:
            os.link(part, path)  # unlike O_EXCL on the name itself, no reader ever sees a half-written file
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))  # no hard links here: claim the name
            part.replace(path)
        else:
            part.unlink()
    else:
        part.replace(path)
    sync_directory(path.parent)


def discard(part: Path) -> None:
    """Remove what a failed write left, if anything; a second failure must not hide the first."""
    with suppress(OSError):
        part.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):  # some filesystems cannot sync a directory; the rename itself is still atomic
            os.fsync(handle)
    finally:
        os.close(handle)


def failure(action: str, error: OSError) -> StorageFailure | NotFound | Conflict:
    """An OSError as a typed failure; the text names the reason, never a path."""
    if isinstance(error, FileNotFoundError):
        return NotFound("there is no such object", code="object_not_found")
    if isinstance(error, FileExistsError):
        return Conflict("the object exists already", code="object_exists")
    code = "storage_denied" if isinstance(error, PermissionError) else "storage_failed"
    return StorageFailure(f"cannot {action}: {reason(error)}", code=code)


def reason(error: OSError) -> str:
    """The system's words for an OSError, without the path that its own text carries."""
    return os.strerror(error.errno) if error.errno else type(error).__name__
