"""A local directory with the promises of a bucket: atomic objects, conditional create, streaming."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from stat import S_ISREG

from cosmos3_serve.errors import Conflict, LimitExceeded, RangeNotSatisfiable, StorageFailure, UsageError
from cosmos3_serve.storage import files
from cosmos3_serve.storage.files import NOT_WRITABLE
from cosmos3_serve.storage.store import (
    BOOKKEEPING,
    CHUNK_BYTES,
    PROBES,
    ObjectInfo,
    ObjectStore,
    Proof,
    no_conditional_put,
)
from cosmos3_serve.storage.uri import check_key

LIST_PAGE = 500
HOP_BYTES = 16 * 1024 * 1024  # for one call in a thread


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
                    raise _too_large(size, max_bytes)
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

    async def get_bytes(self, key: str, *, max_bytes: int) -> tuple[ObjectInfo, bytes] | None:
        path = self._path(key)

        def read() -> tuple[ObjectInfo, bytes] | None:
            try:
                handle = _open_regular(path)
            except (FileNotFoundError, NotADirectoryError):
                return None
            with os.fdopen(handle, "rb") as file:
                stat = os.fstat(handle)
                if stat.st_size > max_bytes:
                    raise _too_large(stat.st_size, max_bytes)
                return _info(key, stat), file.read(max_bytes)

        try:
            return await files.in_thread(read)
        except OSError as error:
            raise files.failure("read the object", error) from None

    async def put_bytes(self, key: str, data: bytes, *, create: bool = False) -> ObjectInfo:
        return await self._store(key, data, files.publish_new if create else files.publish)

    async def swap(self, key: str, data: bytes, expected: ObjectInfo) -> ObjectInfo:
        def publish(part: Path, path: Path) -> None:
            files.publish_swap(part, path, lambda stat: S_ISREG(stat.st_mode) and _tag(stat) == expected.etag)

        return await self._store(key, data, publish)

    async def put_file(self, key: str, path: Path, *, create: bool = False) -> ObjectInfo:
        return await self._store(key, path, files.publish_new if create else files.publish)

    async def hash_object(self, key: str) -> tuple[int, str]:
        path, digest, size = self._path(key), hashlib.sha256(), 0

        def some(handle: int) -> int:
            seen = 0
            while seen < HOP_BYTES and (chunk := os.read(handle, CHUNK_BYTES)):
                digest.update(chunk)
                seen += len(chunk)
            return seen

        try:
            handle = await files.in_thread(_open_regular, path)
            try:
                while count := await files.in_thread(some, handle):
                    size += count
            finally:
                os.close(handle)  # every read has ended: in_thread never leaves one running
        except OSError as error:
            raise files.failure("read the object", error) from None
        return size, digest.hexdigest()

    async def prove(self, prefix: str = "", *, swap: bool = False) -> Proof:
        folder = self._path(f"{prefix}/{PROBES}" if prefix else PROBES)
        made = await files.in_thread(files.missing_directories, folder)
        try:
            return await super().prove(prefix, swap=swap)
        except StorageFailure as error:
            if error.stable_code != NOT_WRITABLE:
                raise
            raise UsageError(
                f"nothing can be written at the local directory: {error.detail}",
                remedy="name a directory that this user can create and write to",
                code=NOT_WRITABLE,
            ) from None
        finally:
            await files.in_thread(files.remove_empty, [folder, *made])

    async def _store(self, key: str, source: bytes | Path, publish: Callable[[Path, Path], None]) -> ObjectInfo:
        path = self._path(key)
        part = files.part_of(path)
        try:
            handle = await files.in_thread(files.create_with_parents, part)
            try:
                if isinstance(source, bytes):
                    await files.in_thread(files.write_all, handle, source)
                else:
                    await self._copy(source, handle)
                await files.in_thread(os.fsync, handle)
                await files.in_thread(publish, part, path)
                stat = os.fstat(handle)
            finally:
                os.close(handle)
        except files.Swapped:
            raise Conflict("the object was replaced or removed meanwhile", code="precondition_failed") from None
        except files.Unsupported as error:
            raise no_conditional_put(f"the file system cannot: {error.strerror}") from None
        except OSError as error:
            raise files.write_failure("store the object", error) from None
        finally:
            await files.in_thread(files.discard, part)
        return _info(key, stat)

    async def _copy(self, source: Path, target: int) -> None:
        handle = await files.in_thread(os.open, source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # One short thread call for some megabytes, so that a cancelled copy ends at the next one.
            while await files.in_thread(files.copy_some, handle, target, HOP_BYTES):
                pass
        finally:
            os.close(handle)

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
            await files.in_thread(files.remove, path)
            if path.parent.name.startswith(BOOKKEEPING):
                await files.in_thread(files.remove_empty, [path.parent])
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
    return ObjectInfo(key, stat.st_size, _tag(stat), stat.st_mtime)


def _tag(stat: os.stat_result) -> str:
    return f'"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}"'


def _too_large(size: int, max_bytes: int) -> LimitExceeded:
    return LimitExceeded(
        f"the object has {size} bytes, the limit is {max_bytes}",
        remedy="use a smaller object, or raise the limit",
        code="object_too_large",
    )


def _open_regular(path: Path) -> int:
    # O_NONBLOCK: opening a FIFO must not hang; it and directories are then refused as no object.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return handle


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
            with suppress(FileNotFoundError):  # removed meanwhile
                yield _info(prefix + entry.name, entry.stat())
