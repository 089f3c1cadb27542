"""Where the bytes lie: one file per content, named by its SHA-256, with kernel locks for what is in use.

Several gateways of one machine may share the directory. A file that is in use is held open with a shared lock; whoever
wants to remove it must first get an exclusive one. Locks die with their process, so a crash pins nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from cosmos3_serve.errors import NotReady, StartRefused, StorageFailure
from cosmos3_serve.storage import files

_NAME = re.compile(r"[0-9a-f]{64}\Z")
_TOUCH_S = 30.0
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Blob:
    """A content in use: it cannot vanish before `close`. Also a context manager.

    `path` is the file; read it or hand it on, never write it.
    """

    __slots__ = ("_handle", "path", "sha256", "size")

    def __init__(self, handle: int, path: Path, sha256: str, size: int) -> None:
        self._handle = handle
        self.path, self.sha256, self.size = path, sha256, size

    def read(self) -> bytes:
        """The bytes. Blocking."""
        return self.path.read_bytes()

    def close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def __enter__(self) -> Blob:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def blob_path(root: Path, sha256: str) -> Path:
    if not _NAME.match(sha256):
        raise ValueError("a blob is named by a SHA-256 in lower-case hex")
    return root / sha256[:2] / sha256


def pin(root: Path, sha256: str) -> Blob | None:
    """Open a blob for use; None where there is none. Blocking, some microseconds."""
    path = blob_path(root, sha256)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise failure("read", error) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        state = os.fstat(handle)
    except OSError:
        os.close(handle)  # somebody is removing it right now
        return None
    if state.st_nlink == 0:
        os.close(handle)
        return None
    if time.time() - state.st_mtime > _TOUCH_S:
        with suppress(OSError):
            os.utime(handle)  # the time of last use, for every process that evicts
    return Blob(handle, path, sha256, state.st_size)


def remove(root: Path, sha256: str) -> bool:
    """Remove a blob unless anybody uses it; True if it is gone."""
    path = blob_path(root, sha256)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(handle), path.stat()):
            return False  # another process removed it and stored it again: that file is not the one locked here
        path.unlink()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def scan(root: Path) -> list[tuple[float, str, int]]:
    """Every blob as (time of last use, sha256, bytes), oldest first; what dead processes left half-written goes."""
    found: list[tuple[float, str, int]] = []
    for folder in root.iterdir() if root.is_dir() else ():
        if not folder.is_dir():
            continue
        for path in folder.iterdir():
            with suppress(OSError):
                state = path.stat()
                if _NAME.match(path.name):
                    found.append((state.st_mtime, path.name, state.st_size))
                elif time.time() - state.st_mtime > 3600:
                    path.unlink()
    return sorted(found)


def check_disk(root: Path, needed: int) -> None:
    """Whether this file system can hold a media store: kernel locks, hard links or renames, and some room.

    Raises:
        StartRefused: code `store_unusable`, with what is wrong.
    """
    remedy = "use --store-dir on a local disk with room (in Kubernetes an emptyDir, not a shared claim)"
    part = files.part_of(root / "lock")
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(files.create_part(part))
        locks = _locks_work(part)
        free = shutil.disk_usage(root).free
    except OSError as error:
        raise StartRefused(
            f"the media store's directory cannot be used: {files.reason(error)}", code="store_unusable", remedy=remedy
        ) from None
    finally:
        files.discard(part)
    if locks:
        raise StartRefused(
            f"files in use cannot be locked on the media store's file system: {locks}",
            code="store_unusable",
            remedy=remedy,
        )
    if free < needed:
        raise StartRefused(
            f"the media store's disk has {free} bytes free; one video may need {needed}",
            code="store_unusable",
            remedy=remedy,
        )


def _locks_work(path: Path) -> str:
    """Why not, as `pin` and `remove` use them: shared and exclusive, on descriptors that only read. Empty: they do."""
    mine, theirs = (os.open(path, os.O_RDONLY | os.O_CLOEXEC) for _ in range(2))
    try:
        fcntl.flock(mine, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(theirs, fcntl.LOCK_SH | fcntl.LOCK_NB)
        try:
            fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return "two processes got the same lock"
        except BlockingIOError:
            pass
        os.close(mine)
        mine = -1
        fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return files.reason(error)
    finally:
        for handle in (mine, theirs):
            if handle >= 0:
                os.close(handle)
    return ""


def failure(action: str, error: OSError) -> NotReady | StorageFailure:
    """A full disk passes when something is evicted or the operator acts; anything else is a fault."""
    if error.errno in _FULL:
        return NotReady("the media store's disk is full", code="media_store_full", retry_after_s=10)
    return StorageFailure(f"cannot {action} in the media store: {files.reason(error)}", code="media_store_failed")
