"""MediaStore: bytes by content, bounded by bytes and by age; what is in use stays.

The least recently used goes first. Room is made while bytes arrive, so that the bound holds at every moment for what
this process wrote; what other gateways of the same directory wrote is counted at the next scan.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

from cosmos3_serve.errors import NotReady
from cosmos3_serve.media.refusal import bad, too_large
from cosmos3_serve.reasoner.media import blobs
from cosmos3_serve.reasoner.media.blobs import Blob, blob_path
from cosmos3_serve.storage import files

WRITE_BYTES = 1024 * 1024


class MediaStore:
    """
    Args:
        root: a directory of its own on a local filesystem (locks and atomic renames).
        max_bytes: of all contents together.
        max_age_s: since the last use.

    Every method may raise NotReady (code `media_store_full`) or StorageFailure (code `media_store_failed`).
    """

    def __init__(
        self, root: Path, *, max_bytes: int, max_age_s: float = 24 * 3600.0, clock: Callable[[], float] = time.time
    ) -> None:
        if max_bytes < 1 or max_age_s <= 0:
            raise ValueError("the bounds of the media store must be positive")
        self._root = root / "blobs"
        self.max_bytes, self._max_age_s, self._clock = max_bytes, max_age_s, clock
        # Held also while a file gets or loses its name (microseconds): another thread in between would leave a file
        # that nothing counts.
        self._lock = threading.Lock()
        self._scans = threading.Lock()
        self._changed: dict[str, int | None] | None = None
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._bytes = 0
        self._reserved = 0
        self.evicted = 0

    @property
    def used_bytes(self) -> int:
        """Of all contents known here, and of what is being written."""
        return self._bytes + self._reserved

    def __len__(self) -> int:
        return len(self._sizes)

    def open(self) -> None:
        """Make the directory and take in what it holds. Blocking; also called now and then (`sweep`)."""
        with self._scans:
            found = self._scan()
        deadline = self._clock() - self._max_age_s
        for used, sha256, _ in found:
            if used >= deadline:
                break
            self._evict(sha256)
        with suppress(NotReady):  # all in use: the next write will say so
            self._reserve(0)

    sweep = open

    def _scan(self) -> list[tuple[float, str, int]]:
        with self._lock:
            self._changed = {}
        try:
            self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
            found = blobs.scan(self._root)
        except OSError as error:
            self._changed = None
            raise blobs.failure("read", error) from None
        with self._lock:
            changed, self._changed = self._changed, None
            self._sizes = OrderedDict((sha256, size) for _, sha256, size in found)
            self._bytes = sum(self._sizes.values())
            for sha256, size in (changed or {}).items():  # what came and went while the directory was read
                self._count(sha256, size)
        return found

    def pin(self, sha256: str) -> Blob | None:
        """Take a content in use; None where there is none (or no more). Blocking, some microseconds."""
        with self._lock:
            blob = blobs.pin(self._root, sha256)
            self._count(sha256, None if blob is None else blob.size)
        return blob

    def put(self, data: bytes, sha256: str | None = None) -> Blob:
        """Store bytes and take them in use. Blocking."""
        sha256 = sha256 or hashlib.sha256(data).hexdigest()
        known = self.pin(sha256)
        if known is not None:
            return known
        with self.writer(len(data)) as writer:
            writer.write(data)
            return writer.commit(sha256)

    async def put_stream(self, chunks: AsyncIterator[bytes], max_bytes: int, sha256: str | None = None) -> Blob:
        """Store a stream and take it in use; hashed while it is written, off the event loop.

        Raises:
            Refused: it holds no byte, or more than `max_bytes`; nothing is kept.
            ValueError: it has another hash than `sha256`; nothing is kept.
        """
        writer = await asyncio.to_thread(self.writer, max_bytes)
        try:
            waiting: list[bytes] = []
            size = 0
            async for chunk in chunks:
                waiting.append(chunk)
                size += len(chunk)
                if size >= WRITE_BYTES:
                    await files.in_thread(writer.write, b"".join(waiting))
                    waiting, size = [], 0
            await files.in_thread(writer.write, b"".join(waiting))
            if not writer.size:
                raise bad("media_empty", "the content holds 0 bytes")
            return await files.in_thread(writer.commit, sha256)
        finally:
            await files.in_thread(writer.close)

    def adopt(self, path: Path) -> Blob:
        """Take a finished file (of this filesystem) over as a content and in use. Blocking; the file is moved."""
        with self.writer(path.stat().st_size) as writer, path.open("rb") as source:
            while chunk := source.read(WRITE_BYTES):
                writer.write(chunk)
            blob = writer.commit()
        path.unlink(missing_ok=True)
        return blob

    def writer(self, max_bytes: int) -> Writer:
        """A place for bytes whose hash is not known yet."""
        return Writer(self, self._root, max_bytes)

    def forget(self, sha256: str) -> None:
        """Remove a content that nobody should use again, unless it is in use. Blocking."""
        self._evict(sha256)

    # ---- room -------------------------------------------------------------------------------------------------------

    def _reserve(self, size: int) -> None:
        """
        Raises:
            NotReady: everything that could go is in use.
        """
        tried = 0
        while True:
            with self._lock:
                if self._bytes + self._reserved + size <= self.max_bytes:
                    self._reserved += size
                    return
                oldest = next(iter(self._sizes), None) if tried < len(self._sizes) else None
            if oldest is None:
                raise NotReady(
                    f"the media store's {self.max_bytes} bytes are all in use",
                    code="media_store_full",
                    retry_after_s=5,
                )
            tried = 0 if self._evict(oldest) else tried + 1

    def _release(self, reserved: int) -> None:
        with self._lock:
            self._reserved -= reserved

    def _evict(self, sha256: str) -> bool:
        """True if it was counted and is gone."""
        with self._lock:
            if not blobs.remove(self._root, sha256):
                if sha256 in self._sizes:
                    self._sizes.move_to_end(sha256)  # in use: not a candidate for a while
                return False
            known = sha256 in self._sizes
            self._count(sha256, None)
            self.evicted += 1
        return known

    def _claim(self, part: Path, target: Path, size: int) -> bool:
        """Give a written file its name; the room that was reserved for it is then counted under the name."""
        with self._lock:
            claimed = _claim(part, target)
            if claimed:
                self._count(target.name, size)
                self._reserved -= size
        return claimed

    def _count(self, sha256: str, size: int | None) -> None:
        """What the directory now holds under a name; None: nothing. Under the lock."""
        if self._changed is not None:
            self._changed[sha256] = size
        self._bytes += (size or 0) - self._sizes.pop(sha256, 0)
        if size is not None:
            self._sizes[sha256] = size


class Writer:
    """Bytes on their way into the store: hashed, counted, invisible until `commit`. Not for several threads at once."""

    def __init__(self, store: MediaStore, root: Path, max_bytes: int) -> None:
        self._store, self._root, self._max_bytes = store, root, min(max_bytes, store.max_bytes)
        self._digest = hashlib.sha256()
        self._reserved = 0
        self.size = 0
        incoming = root / "incoming"
        try:
            incoming.mkdir(parents=True, exist_ok=True)
            self._part = files.part_of(incoming / "content")
            self._handle = files.create_part(self._part)
        except OSError as error:
            raise blobs.failure("write", error) from None

    def write(self, data: bytes) -> None:
        """
        Raises:
            Refused: more than the writer's `max_bytes`.
        """
        if self.size + len(data) > self._max_bytes:
            raise too_large(
                "media_too_large",
                f"the content holds more than {self._max_bytes} bytes",
                "cut it or lower its bit rate",
            )
        self._store._reserve(len(data))
        self._reserved += len(data)
        try:
            files.write_all(self._handle, data)
        except OSError as error:
            raise blobs.failure("write", error) from None
        self._digest.update(data)
        self.size += len(data)

    def commit(self, sha256: str | None = None) -> Blob:
        """Give the bytes their name and take them in use; ends the writer."""
        name = self._digest.hexdigest()
        if sha256 is not None and sha256 != name:
            raise ValueError("the bytes have another hash than announced")
        target = blob_path(self._root, name)
        try:
            os.fsync(self._handle)  # a file that is short after a power cut would be judged broken, and remembered so
            target.parent.mkdir(parents=True, exist_ok=True)
            # Locked before it has its name, so that nobody can evict it in between.
            fcntl.flock(self._handle, fcntl.LOCK_SH)
            for _ in range(8):
                # Never replaced: whoever uses the one that is there relies on its path.
                if self._store._claim(self._part, target, self.size):
                    handle, self._handle, self._reserved = self._handle, -1, 0
                    return Blob(handle, target, name, self.size)
                blob = self._store.pin(name)
                if blob is not None:
                    return blob
        except OSError as error:
            raise blobs.failure("write", error) from None
        finally:
            self.close()
        raise NotReady("the media store is too busy", code="media_store_full", retry_after_s=5)

    def close(self) -> None:
        """Drop what was not committed."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        files.discard(self._part)
        reserved, self._reserved = self._reserved, 0
        self._store._release(reserved)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _claim(part: Path, target: Path) -> bool:
    """Give a file its name unless the name is taken."""
    try:
        os.link(part, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        part.replace(target)  # no hard links here
    return True
