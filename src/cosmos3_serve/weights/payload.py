"""Are the bytes on disk those that the Hub declares? Names, sizes and a finished download prove nothing.

The Hub declares a hash for every file of a revision: SHA-256 for large files, git's blob SHA-1 for the others. They are
asked for once and kept as a manifest; from then on the bytes are checked against it, also without a network. What the
manifest does not name must not lie beside it either.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from cosmos3_serve.weights.manifest import CHUNK, HashCache, payload_paths, write_atomic

log = logging.getLogger(__name__)

SCHEMA = "cosmos3.payload.v1"
MAX_FILES = 100_000
HASH_THREADS = 4
PROGRESS_S = 5.0


class PayloadProblem(Exception):
    """`kind`: empty, incomplete, altered, unverified (nothing to check against), manifest (unreadable or differs)."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


@dataclass(frozen=True, order=True, slots=True)
class HubFile:
    """A file as the Hub declares it; exactly one of the hashes is set."""

    path: str
    size: int
    sha256: str = ""
    git_sha1: str = ""


def manifest_path(home: Path, repo: str, revision: str) -> Path:
    """Where the manifest of a revision is kept: beside the Hub's cache, so that whoever mounts one has the other."""
    return home / "cosmos3-payload" / repo.replace("/", "--") / f"{revision}.json"


def write_manifest(path: Path, repo: str, revision: str, files: Iterable[HubFile]) -> None:
    """Raises OSError."""
    listed = _as_json(files)
    record = {"schema": SCHEMA, "repo_id": repo, "revision": revision, "files": listed, "tree_sha256": _tree(listed)}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(record, indent=1, sort_keys=True) + "\n")


def read_manifest(path: Path, repo: str, revision: str) -> list[HubFile] | None:
    """The stored manifest, None where there is none.

    Raises:
        PayloadProblem: `manifest`: it cannot be read, is another revision's, or was changed.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        same = (record["schema"], record["repo_id"], record["revision"]) == (SCHEMA, repo, revision)
        files = [HubFile(name, int(f["size"]), f["sha256"], f["git_sha1"]) for name, f in record["files"].items()]
        if same and files and record["tree_sha256"] == _tree(_as_json(files)):
            return sorted(files)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise PayloadProblem("manifest", f"the stored manifest of {repo} is damaged")


def _as_json(files: Iterable[HubFile]) -> dict[str, Any]:
    return {f.path: {"size": f.size, "sha256": f.sha256, "git_sha1": f.git_sha1} for f in sorted(files)}


def declared_digest(files: Iterable[HubFile]) -> str:
    """SHA-256 over what the Hub declares of these files: their identity, whichever kind of hash each of them has."""
    return _tree(_as_json(files))


def _tree(listed: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(listed, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def selected(files: Iterable[HubFile], patterns: Sequence[str]) -> list[HubFile]:
    """Those that any of the patterns names, by huggingface_hub's own rule (fnmatch over the whole path)."""
    return [file for file in files if any(fnmatch(file.path, pattern) for pattern in patterns)]


def verify(
    root: Path, files: Sequence[HubFile], required: Sequence[HubFile], hashes: HashCache, *, inside: Path, what: str
) -> None:
    """Check every file below `root`. Each large file is read once per (size, times, inode); `hashes` remembers it.

    Args:
        files: all that the revision has; `required` those of them that must be there.
        inside: where links of `root` may lead to, no further.
        what: name of the payload, for the log.

    Raises:
        PayloadProblem: `empty`, `incomplete` or `altered`, naming the first files.
    """
    declared = {file.path: file for file in files}
    present = {path.relative_to(root).as_posix(): path for path in payload_paths(root)} if root.is_dir() else {}
    if not any(file.path in present for file in required):
        raise PayloadProblem("empty", f"{what} has none of its {len(required)} files")
    missing = [file.path for file in required if file.path not in present or not present[file.path].is_file()]
    if missing:
        raise PayloadProblem("incomplete", f"{what} lacks {_named(missing)}")
    strange = [name for name in present if name not in declared]
    if strange:
        raise PayloadProblem("altered", f"{what} holds what its revision does not: {_named(strange)}")
    home = inside.resolve()
    outside = [name for name, path in present.items() if not path.resolve().is_relative_to(home)]
    if outside:
        raise PayloadProblem("altered", f"{what} has links that leave the cache: {_named(outside)}")
    wrong = [name for name, path in present.items() if path.stat().st_size != declared[name].size]
    if wrong:
        raise PayloadProblem("altered", f"{what} has files of another size than declared: {_named(wrong)}")
    large = [name for name in present if declared[name].sha256]
    _hash([present[name] for name in large], hashes, what)
    wrong = [name for name in large if hashes.sha256(present[name])[1] != declared[name].sha256]
    wrong += [n for n, p in present.items() if not declared[n].sha256 and git_sha1_file(p) != declared[n].git_sha1]
    hashes.save()
    if wrong:
        raise PayloadProblem("altered", f"{what} differs from what the Hub declares: {_named(sorted(wrong))}")


def git_sha1_file(path: Path) -> str:
    """Git's blob hash: SHA-1 over a header with the size, and the content."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _hash(paths: Sequence[Path], hashes: HashCache, what: str) -> None:
    """Hash what is not remembered, a few files at once, and say how far it is every few seconds."""
    todo = [path for path in paths if hashes.known(path) is None]
    if not todo:
        return
    total = sum(path.stat().st_size for path in todo)
    lock = threading.Lock()
    done, said = 0, time.monotonic()

    def on_bytes(count: int) -> None:
        nonlocal done, said
        with lock:
            done += count
            if time.monotonic() - said >= PROGRESS_S:
                said = time.monotonic()
                log.info("verifying %s: %.1f of %.1f GB hashed", what, done / 1e9, total / 1e9)

    with ThreadPoolExecutor(min(HASH_THREADS, os.cpu_count() or 1), thread_name_prefix="payload-hash") as pool:
        for _ in pool.map(lambda path: hashes.sha256(path, on_bytes), todo):
            pass
    with contextlib.suppress(OSError):
        log.info("verified %s: %d files hashed, %.2f GB", what, len(todo), total / 1e9)


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
