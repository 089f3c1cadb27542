"""Durable file writes: a hidden sibling first, fsync, then one atomic rename. Blocking; call through `in_thread`."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import errno
import fcntl
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from cosmos3_serve.errors import Conflict, NotFound, StorageFailure

P = ParamSpec("P")
T = TypeVar("T")
TRIES = 5
COPY_BYTES = 1024 * 1024
AT_FDCWD, RENAME_NOREPLACE = -100, 1  # linux/fcntl.h, linux/fs.h
NOT_WRITABLE = "location_not_writable"
_NOT_WRITABLE = frozenset(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)
)
_PART = re.compile(r"\.[0-9a-f]{32}\.part\Z")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a short blocking call off the event loop, and wait for its end even when cancelled.

    `asyncio.to_thread` alone would leave the thread writing to a descriptor that its cancelled caller then closes.
    """
    context = contextvars.copy_context()
    task = asyncio.get_running_loop().run_in_executor(None, partial(context.run, function, *args, **kwargs))
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


def read_all(handle: int, count: int, position: int) -> bytes:
    """Exactly `count` bytes from `position`; the position of the handle is not moved.

    Raises:
        OSError: the file is shorter.
    """
    data = os.pread(handle, count, position)
    while len(data) < count:  # a read of more than some megabytes may be cut by a signal
        more = os.pread(handle, count - len(data), position + len(data))
        if not more:
            raise OSError(errno.EIO, "the file became shorter")
        data += more
    return data


def copy_some(source: int, target: int, count: int) -> int:
    """Copy up to `count` bytes between two positions in files, in the kernel where it can; 0 at the end."""
    try:
        return os.copy_file_range(source, target, count)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM):
            raise
    done = 0
    while done < count and (chunk := os.read(source, min(COPY_BYTES, count - done))):
        write_all(target, chunk)
        done += len(chunk)
    return done


def create_with_parents(part: Path) -> int:
    """`make_parents` and `create_part`, again where another process removes an empty directory in between."""
    for tries in range(TRIES):
        try:
            make_parents(part)
            return create_part(part)
        except FileNotFoundError:
            if tries == TRIES - 1:
                raise
    raise AssertionError("unreachable")


def missing_directories(directory: Path) -> list[Path]:
    """`directory` and those above it that do not exist, deepest first."""
    missing = []
    while not directory.is_dir() and directory != directory.parent:
        missing.append(directory)
        directory = directory.parent
    return missing


def make_parents(path: Path) -> None:
    """Create the missing directories above `path`, each entry on disk before the next is used."""
    for directory in reversed(missing_directories(path.parent)):
        try:
            directory.mkdir()
        except FileExistsError:
            if not directory.is_dir():  # a file is in the way; that is no conflict between two writers of one name
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
        sync_directory(directory.parent)


class Unsupported(OSError):
    """The file system cannot do what a conditional write needs."""


def publish(part: Path, path: Path) -> None:
    """Give a finished part its name, replacing what has it."""
    with _locked(path.parent):
        _replace(part, path)


def publish_new(part: Path, path: Path) -> None:
    """Give a finished part its name if the name is free. Unlike with O_EXCL, no reader ever sees a half-written file.

    Raises:
        FileExistsError: the name is taken.
        Unsupported: the file system has neither hard links nor a rename that does not replace.
    """
    try:
        os.link(part, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        _rename_no_replace(part, path)
    else:
        part.unlink()
    sync_directory(path.parent)


def publish_swap(part: Path, path: Path, expected: Callable[[os.stat_result], bool]) -> None:
    """Give a finished part the name of a file that is still as `expected`.

    Raises:
        Swapped: the file was replaced or removed.
        Unsupported: the file system has no locks.
    """
    with _locked(path.parent) as locked:
        if not locked:
            raise Unsupported(errno.ENOLCK, "it has no locks on directories")
        try:
            unchanged = expected(path.lstat())
        except FileNotFoundError:
            unchanged = False
        if not unchanged:
            raise Swapped
        _replace(part, path)


class Swapped(Exception):
    """The file is no longer the expected version."""


def remove(path: Path) -> None:
    with _locked(path.parent):
        path.unlink()


def remove_empty(directories: Iterable[Path]) -> None:
    """Remove those that are empty, in the order given."""
    for directory in directories:
        with suppress(OSError):
            directory.rmdir()


@contextmanager
def _locked(directory: Path) -> Iterator[bool]:
    """Hold the directory's lock: a swap looks and replaces under it, so every other change of a name waits for it.

    Yields whether there is such a lock; some network file systems have none.
    """
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)


def _replace(part: Path, path: Path) -> None:
    with suppress(FileNotFoundError):
        # Versions of one name must differ in more than an inode, which is reused: each is newer than the one before.
        old, new = path.lstat(), part.stat()
        if new.st_mtime_ns <= old.st_mtime_ns:
            os.utime(part, ns=(new.st_atime_ns, old.st_mtime_ns + 1))
    part.replace(path)
    sync_directory(path.parent)


def _rename_no_replace(part: Path, path: Path) -> None:
    """renameat2(RENAME_NOREPLACE), which FAT, exFAT, SMB and many FUSE file systems have in place of hard links."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise Unsupported(errno.ENOSYS, "it has no hard links")
    if rename(AT_FDCWD, os.fsencode(part), AT_FDCWD, os.fsencode(path), RENAME_NOREPLACE):
        number = ctypes.get_errno()
        if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP):
            raise Unsupported(number, "it has neither hard links nor a rename that does not replace")
        raise OSError(number, os.strerror(number))


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
    """An OSError of a read as a typed failure; the text names the reason, never a path."""
    if isinstance(error, FileNotFoundError):
        return NotFound("there is no such object", code="object_not_found")
    if isinstance(error, PermissionError):
        return StorageFailure(f"cannot {action}: {reason(error)}", code="storage_denied")
    return write_failure(action, error)


def write_failure(action: str, error: OSError) -> StorageFailure | Conflict:
    """An OSError of a write, where a missing path is no missing object."""
    if isinstance(error, FileExistsError):
        return Conflict("the object exists already", code="object_exists")
    code = NOT_WRITABLE if error.errno in _NOT_WRITABLE else "storage_failed"
    return StorageFailure(f"cannot {action}: {reason(error)}", code=code)


def reason(error: OSError) -> str:
    """The system's words for an OSError, without the path that its own text carries."""
    return os.strerror(error.errno) if error.errno else type(error).__name__
