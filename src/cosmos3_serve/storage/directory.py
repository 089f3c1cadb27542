"""A local directory with the promises of a bucket: atomic objects, conditional create, streaming."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from itertools import islice
from pathlib import Path
from stat import S_ISREG

from cosmos3_serve.errors import LimitExceeded, RangeNotSatisfiable, StorageFailure
from cosmos3_serve.storage import files
from cosmos3_serve.storage.store import CHUNK_BYTES, ObjectInfo, ObjectStore
from cosmos3_serve.storage.uri import check_key

LIST_PAGE = 500


class DirectoryStore(ObjectStore):
    """See `ObjectStore`. Directories are made as needed; hidden `.part` files of unfinished writes are not objects."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def _path(self, key: str) -> Path:
        return self.root.joinpath(*check_key(key).split("/"))

    async def head(self, key: str) -> ObjectInfo | None:
        path = self._path(key)
        try:
            stat = await files.in_thread(path.stat)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise files.failure("look up the object", error) from None
        return _info(key, stat) if S_ISREG(stat.st_mode) else None

    async def get_stream(
        self, key: str, *, start: int = 0, chunk_size: int = CHUNK_BYTES, max_bytes: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        path = self._path(key)
        try:
            handle = await files.in_thread(_open_regular, path)
            try:
                size = os.fstat(handle).st_size
                if max_bytes is not None and size > max_bytes:
                    raise LimitExceeded(
                        f"the object has {size} bytes, the limit is {max_bytes}",
                        remedy="use a smaller object, or raise the limit",
                        code="object_too_large",
                    )
                if start and start >= size:
                    raise RangeNotSatisfiable(f"the object has {size} bytes, the requested start is {start}")
                position = start
                while position < size:
                    chunk = await files.in_thread(os.pread, handle, min(chunk_size, size - position), position)
                    if not chunk:
                        raise StorageFailure("the object was cut while it was read", code="object_changed")
                    position += len(chunk)
                    yield chunk
            finally:
                os.close(handle)  # every read has ended: in_thread never leaves one running
        except OSError as error:
            raise files.failure("read the object", error) from None

    async def put_bytes(self, key: str, data: bytes, *, create: bool = False) -> ObjectInfo:
        return await self._store(key, [data], create=create)

    async def put_file(self, key: str, path: Path) -> ObjectInfo:
        return await self._store(key, _chunks_of(path))

    async def _store(self, key: str, chunks: Iterable[bytes], *, create: bool = False) -> ObjectInfo:
        path = self._path(key)
        part = files.part_of(path)
        try:
            await files.in_thread(files.make_parents, path)
            handle = await files.in_thread(files.create_part, part)
            try:
                # One short thread call a chunk, so that a cancelled copy ends at the next one.
                pieces = iter(chunks)
                while piece := await files.in_thread(next, pieces, b""):
                    await files.in_thread(files.write_all, handle, piece)
                await files.in_thread(os.fsync, handle)
                stat = os.fstat(handle)
            finally:
                os.close(handle)
            await files.in_thread(files.publish, part, path, create=create)
        except OSError as error:
            raise files.failure("store the object", error) from None
        finally:
            await files.in_thread(files.discard, part)
        return _info(key, stat)

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        prefix = prefix.strip("/")
        top = self._path(prefix) if prefix else self.root
        found = _walk(top, f"{prefix}/" if prefix else "")
        try:
            while page := await files.in_thread(lambda: tuple(islice(found, LIST_PAGE))):
                for info in page:
                    yield info
        except OSError as error:
            raise files.failure("list the objects", error) from None

    async def delete(self, key: str) -> None:
        path = self._path(key)
        try:
            await files.in_thread(path.unlink)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise files.failure("delete the object", error) from None

    async def check(self) -> None:
        def probe() -> None:
            place = self.root
            while not place.exists():
                place = place.parent
            if not place.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if not os.access(place, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        try:
            await files.in_thread(probe)
        except OSError as error:
            raise files.failure("use the directory", error) from None


def _info(key: str, stat: os.stat_result) -> ObjectInfo:
    tag = f'"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}"'
    return ObjectInfo(key, stat.st_size, tag, stat.st_mtime)


def _open_regular(path: Path) -> int:
    # O_NONBLOCK: opening a FIFO must not hang; it and directories are then refused as no object.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return handle


def _chunks_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            yield chunk


def _walk(top: Path, prefix: str) -> Iterator[ObjectInfo]:
    """Regular files below `top` in key order; sorting "a/" with its slash puts "a.b" before "a/b", as a bucket does."""
    try:
        entries = sorted(os.scandir(top), key=lambda e: e.name + "/" if e.is_dir() else e.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir():
            yield from _walk(Path(entry.path), f"{prefix}{entry.name}/")
        elif entry.is_file() and not files.is_part(entry.name):
            yield _info(prefix + entry.name, entry.stat())
