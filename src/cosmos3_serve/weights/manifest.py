"""What a checkpoint consists of: its payload files with size and SHA-256, and one digest over all of them."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

CHUNK = 4 * 1024 * 1024
_MAX_REMEMBERED = 4096


@dataclass(frozen=True, order=True, slots=True)
class PayloadFile:
    path: str  # relative, with forward slashes
    size: int
    sha256: str


def payload_paths(root: Path) -> Iterator[Path]:
    """Every regular file below `root` (symlinks followed, as in a Hub snapshot), without hidden files and folders."""
    for folder, names, files in os.walk(root, followlinks=True):
        names[:] = sorted(n for n in names if not n.startswith("."))
        for name in sorted(files):
            if not name.startswith("."):
                yield Path(folder) / name


def sha256_file(path: Path) -> str:
    """Streaming SHA-256: a 30 GB checkpoint never lies in memory."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def payload_digest(files: Iterable[PayloadFile]) -> str:
    """SHA-256 over the sorted (path, size, sha256) of the files: the identity of a checkpoint's bytes."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.path}\0{file.size}\0{file.sha256}\n".encode())
    return digest.hexdigest()


class HashCache:
    """Remembers file hashes by (path, size, mtime), since hashing a full checkpoint takes minutes.

    Args:
        path: the JSON file to remember in; a missing or broken one counts as empty, an unwritable one is not written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, list[int | str]] = {}
        self._dirty = False
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
            self._known = {k: v for k, v in known.items() if isinstance(v, list) and len(v) == 3}
        except (OSError, ValueError, AttributeError):
            pass

    def sha256(self, file: Path) -> tuple[int, str]:
        """(size, SHA-256) of `file`."""
        real = file.resolve()
        stat = real.stat()
        entry = self._known.get(str(real))
        if entry is not None and entry[0] == stat.st_size and entry[1] == stat.st_mtime_ns:
            return stat.st_size, str(entry[2])
        value = sha256_file(real)
        self._known.pop(str(real), None)
        self._known[str(real)] = [stat.st_size, stat.st_mtime_ns, value]
        self._dirty = True
        return stat.st_size, value

    def save(self) -> None:
        if not self._dirty:
            return
        while len(self._known) > _MAX_REMEMBERED:
            self._known.pop(next(iter(self._known)))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self._path, json.dumps(self._known))
            self._dirty = False
        except OSError:
            pass  # a cache that cannot be kept costs time, not correctness


def read_payload(root: Path, hashes: HashCache | None = None) -> list[PayloadFile]:
    """Hash every payload file of `root`."""
    found = []
    for path in payload_paths(root):
        size, sha256 = hashes.sha256(path) if hashes else (path.stat().st_size, sha256_file(path))
        found.append(PayloadFile(path.relative_to(root).as_posix(), size, sha256))
    return sorted(found)


def write_atomic(path: Path, text: str) -> None:
    """Write `path` so that a reader sees the old content or the new, never a part."""
    fd, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(partial).chmod(0o644)
        Path(partial).replace(path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
