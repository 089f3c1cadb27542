"""What a checkpoint consists of: its payload files with size and SHA-256, and one digest over all of them."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

CHUNK = 4 * 1024 * 1024
_MAX_REMEMBERED = 4096
# The framework, started by anybody, converts the audio autoencoder in the folder that it finds it in. Nothing here
# reads these two files, so they are no part of a checkpoint wherever they turn up.
DERIVED = frozenset(
    f"sound_tokenizer/avae_48k_noncausal_25hz_64ch.{suffix}" for suffix in ("ckpt", "json")
)  # fmt: skip

OnBytes = Callable[[int], None]


@dataclass(frozen=True, order=True, slots=True)
class PayloadFile:
    path: str  # relative, with forward slashes
    size: int
    sha256: str


def payload_paths(root: Path) -> Iterator[Path]:
    """Every regular file below `root` (symlinks followed, as in a Hub snapshot), without hidden files and folders and
    without `DERIVED`."""
    for folder, names, files in os.walk(root, followlinks=True):
        names[:] = sorted(n for n in names if not n.startswith("."))
        for name in sorted(files):
            path = Path(folder) / name
            if not name.startswith(".") and path.relative_to(root).as_posix() not in DERIVED:
                yield path


def sha256_file(path: Path, on_bytes: OnBytes | None = None) -> str:
    """Streaming SHA-256: a 30 GB checkpoint never lies in memory. `on_bytes` is told how many were read each time."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
            if on_bytes is not None:
                on_bytes(len(chunk))
    return digest.hexdigest()


def payload_digest(files: Iterable[PayloadFile]) -> str:
    """SHA-256 over the sorted (path, size, sha256) of the files: the identity of a checkpoint's bytes."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.path}\0{file.size}\0{file.sha256}\n".encode())
    return digest.hexdigest()


class HashCache:
    """Remembers file hashes by (path, size, modification and change time, inode): hashing a full checkpoint takes
    minutes. A tool that sets the modification time back cannot set back the change time.

    Args:
        path: the JSON file to remember in; a missing or broken one counts as empty, an unwritable one is not written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, list[int | str]] = {}
        self._dirty = False
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
            self._known = {k: v for k, v in known.items() if isinstance(v, list) and len(v) == 5}
        except (OSError, ValueError, AttributeError):
            pass

    def known(self, file: Path) -> str | None:
        """The SHA-256 of `file` if it is remembered and the file is the same still."""
        real = file.resolve()
        entry = self._known.get(str(real))
        return str(entry[4]) if entry is not None and entry[:4] == _stamp(real) else None

    def sha256(self, file: Path, on_bytes: OnBytes | None = None) -> tuple[int, str]:
        """(size, SHA-256) of `file`. May be called from several threads for different files."""
        real = file.resolve()
        stamp = _stamp(real)
        value = self.known(real)
        if value is None:
            value = sha256_file(real, on_bytes) if on_bytes else sha256_file(real)
            if _stamp(real) == stamp:  # else it was written to meanwhile: nothing to remember
                self._known.pop(str(real), None)
                self._known[str(real)] = [*stamp, value]
                self._dirty = True
        return int(stamp[0]), value

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


def _stamp(real: Path) -> list[int | str]:
    stat = real.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


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
