"""The files of a copied output directory, local or below an S3 prefix: listed, streamed, never through a link.

A copy may be of the whole output root, or of the one request's directory below it; `Natives.paths` are relative to the
output root either way.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISLNK, S_ISREG
from typing import Literal, Protocol

from cosmos3_serve.errors import LimitExceeded, NotFound, Refusal, StorageFailure
from cosmos3_serve.storage import files
from cosmos3_serve.storage.below import open_below
from cosmos3_serve.storage.location import Location
from cosmos3_serve.storage.store import CHUNK_BYTES

MAX_FILES = 100_000
MAX_DEPTH = 16
LEDGER_RESPONSE = ".cosmos3/ledger/{}/response.json"  # a copy of our output root may hold the ledger's exact bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in the copy: its size in bytes, or why it is no file (`link`, `special`)."""

    path: str
    size: int
    kind: Literal["file", "link", "special"] = "file"


class Tree(Protocol):
    """A read-only tree of files."""

    kind: Literal["output_directory", "output_prefix"]

    async def has(self, folder: str) -> bool: ...
    async def walk(self, folder: str) -> list[Entry]: ...
    def stream(self, path: str, max_bytes: int | None = None) -> AsyncGenerator[bytes, None]: ...


class LocalTree:
    """A directory. The root itself may be reached through a link; nothing below it may."""

    kind: Literal["output_directory", "output_prefix"] = "output_directory"

    def __init__(self, root: Path) -> None:
        self.root = root

    async def has(self, folder: str) -> bool:
        return await files.in_thread((self.root / folder).is_dir)

    async def walk(self, folder: str) -> list[Entry]:
        try:
            return await files.in_thread(lambda: capped(_walk(self.root / folder, "")))
        except OSError as error:
            raise files.failure("list the copied directory", error) from None

    async def stream(self, path: str, max_bytes: int | None = None) -> AsyncGenerator[bytes, None]:
        handle = await files.in_thread(open_below, self.root, path)
        if handle is None:
            raise NotFound(f"{path} is not there, or is no regular file", code="object_not_found")
        try:
            if max_bytes is not None and os.fstat(handle).st_size > max_bytes:
                raise LimitExceeded(f"{path} is larger than {max_bytes} bytes", code="object_too_large")
            position = 0
            while chunk := await files.in_thread(os.pread, handle, CHUNK_BYTES, position):
                position += len(chunk)
                yield chunk
        except OSError as error:
            raise files.failure("read the copied file", error) from None
        finally:
            os.close(handle)


class PrefixTree:
    """Objects below an S3 prefix."""

    kind: Literal["output_directory", "output_prefix"] = "output_prefix"

    def __init__(self, place: Location) -> None:
        self.place = place

    async def has(self, folder: str) -> bool:
        async for _ in self.place.store.list(self.place.key(folder)):
            return True
        return False

    async def walk(self, folder: str) -> list[Entry]:
        prefix = self.place.key(folder) if folder else self.place.prefix
        start = len(prefix) + 1 if prefix else 0
        found: list[Entry] = []
        async for info in self.place.store.list(prefix):
            if info.key.endswith("/") and not info.size:
                continue  # what S3 consoles make of a folder
            found.append(Entry(info.key[start:], info.size))
            check_count(len(found))
        return found

    def stream(self, path: str, max_bytes: int | None = None) -> AsyncGenerator[bytes, None]:
        return self.place.store.get_stream(self.place.key(path), max_bytes=max_bytes)


@dataclass
class Natives:
    """One request's files in a tree, by path relative to the output root.

    `base` is what the tree lacks of that path: "" for a copied root, `<request id>/` for a copied request directory.
    """

    tree: Tree
    base: str
    entries: dict[str, Entry] = field(default_factory=dict)

    @classmethod
    async def open(cls, tree: Tree, request_id: str, names: Sequence[str]) -> Natives:
        """
        Args:
            names: the requested samples; a copy of the request's folder is known by holding at least one of them.

        Raises:
            Refusal: code `native_outputs_missing`: nothing of the request is there.
            LimitExceeded, StorageFailure.
        """
        root = await tree.has(request_id)
        natives = cls(tree, "" if root else f"{request_id}/")
        folder = root or any([await tree.has(name) for name in names])
        entries = await tree.walk(request_id if root else "") if folder else []
        natives.entries = {f"{request_id}/{entry.path}": entry for entry in entries}
        if not entries:
            raise Refusal(
                f"the copied output directory holds nothing of request {request_id}",
                remedy="name the copy of the service's output root, or of the directory with the request's id",
                code="native_outputs_missing",
            )
        return natives

    async def read(self, path: str, max_bytes: int) -> bytes:
        """Raises LimitExceeded past `max_bytes`, NotFound."""
        async with aclosing(self.tree.stream(self._inside(path), max_bytes)) as chunks:
            return b"".join([chunk async for chunk in chunks])

    async def hash(self, path: str) -> tuple[int, str]:
        """Size in bytes and SHA-256."""
        return await self.copy(path, None)

    async def copy(self, path: str, target: Path | None) -> tuple[int, str]:
        """Stream one file, into `target` where one is given; size and SHA-256 of what was read."""
        digest, size = hashlib.sha256(), 0
        handle = -1
        try:
            if target is not None:
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            async with aclosing(self.tree.stream(self._inside(path))) as chunks:
                async for chunk in chunks:
                    await files.in_thread(digest.update, chunk)
                    size += len(chunk)
                    if handle >= 0:
                        await files.in_thread(files.write_all, handle, chunk)
        except OSError as error:
            raise StorageFailure(f"the spool cannot be written: {files.reason(error)}", code="spool_failed") from None
        finally:
            if handle >= 0:
                os.close(handle)
        return size, digest.hexdigest()

    async def ledger_response(self, request_id: str, max_bytes: int) -> bytes | None:
        """The response that the service's ledger kept, where the copy is of the whole root."""
        if self.base:
            return None
        path = LEDGER_RESPONSE.format(request_id)
        try:
            async with aclosing(self.tree.stream(path, max_bytes)) as chunks:
                return b"".join([chunk async for chunk in chunks])
        except NotFound:
            return None

    def _inside(self, path: str) -> str:
        return path.removeprefix(self.base)


def check_count(count: int) -> None:
    if count > MAX_FILES:
        raise LimitExceeded(
            f"the copied directory holds more than {MAX_FILES} files of this request", code="native_too_many_files"
        )


def capped(entries: Iterator[Entry]) -> list[Entry]:
    found = []
    for entry in entries:
        found.append(entry)
        check_count(len(found))
    return found


def _walk(top: Path, prefix: str) -> Iterator[Entry]:
    if top.is_symlink() and not prefix:
        yield Entry("", 0, "link")
        return
    for entry in sorted(os.scandir(top), key=lambda e: e.name):
        path = prefix + entry.name
        if entry.is_dir(follow_symlinks=False):
            if path.count("/") > MAX_DEPTH:
                raise LimitExceeded(f"folders are nested deeper than {MAX_DEPTH}", code="native_too_deep")
            yield from _walk(Path(entry.path), f"{path}/")
            continue
        status = entry.stat(follow_symlinks=False)
        if S_ISREG(status.st_mode):
            yield Entry(path, status.st_size)
        else:
            yield Entry(path, 0, "link" if S_ISLNK(status.st_mode) else "special")
