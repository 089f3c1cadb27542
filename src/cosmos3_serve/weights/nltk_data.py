"""The tokenizer data of the guardrails, as regular files that NLTK reads.

In the Hub's cache every file is a link into a folder of blobs, and NLTK refuses links (and files with several names).
So the subtree is copied once into a folder of its own, with a marker that holds the hash of every file. From then on it
is only verified, on every start and in full: what does not match refuses the start and is never repaired in silence.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from cosmos3_serve.errors import GuardrailsUnavailable, StartRefused
from cosmos3_serve.weights.assets import Asset
from cosmos3_serve.weights.hub import HubProblem, fetch_verified
from cosmos3_serve.weights.hub_env import Hub
from cosmos3_serve.weights.manifest import HashCache, sha256_file
from cosmos3_serve.weights.payload import PayloadProblem

SUBTREE = "blocklist/nltk_data"
FOLDER = "npa-guardrail-nltk-data"
MARKER = ".npa-materialization.json"
SCHEMA = "npa.cosmos.guardrail_nltk.v1"
READ_ONLY = 0o444
MAX_MARKER = 16 * 1024 * 1024

_REMEDIES = {
    "rate_limited": "try again later",
    "revision_unavailable": "check HF_ENDPOINT, and that the account may see the repository at its pinned revision",
    "access_denied": "accept the licence of the repository and set HF_TOKEN of that account",
    "network_unavailable": "check the network and HF_ENDPOINT; or mount a cache in which the copy exists already",
    "runtime_invalid": "set NLTK_DATA and HF_HOME in the environment before the service starts",
    "content_invalid": "find out who changed the copy, then remove its folder and start again with access",
    "cache_invalid": "find out who changed the copy, then remove its folder and start again with access",
    "materialization_failed": "set HF_HOME or NPA_MODEL_CACHE_DIR to a writable folder with enough space",
}
_HUB = {
    "denied": "access_denied",
    "not_found": "revision_unavailable",
    "offline": "network_unavailable",
    "unreachable": "network_unavailable",
    "rate_limited": "rate_limited",
    "failed": "network_unavailable",
    "cache": "materialization_failed",
}


def materialize(asset: Asset, hub: Hub, hashes: HashCache) -> Path:
    """The folder with the tokenizer data of `asset`: verified if it is there, else fetched, copied and verified.

    Raises:
        GuardrailsUnavailable: code `guardrail_tokenizer_` and the category: rate_limited, revision_unavailable,
            access_denied, network_unavailable, runtime_invalid, content_invalid, cache_invalid,
            materialization_failed.
    """
    target = hub.home / FOLDER / asset.revision
    if not _there(target):
        _copy(asset, hub, hashes, target)
    check(target, asset)
    return target


def export(target: Path, environ: MutableMapping[str, str], *, modules: Iterable[str] | None = None) -> None:
    """Put the folder first in `NLTK_DATA`, for this process and for those that inherit its environment.

    Ray may run already: its workers do not inherit this environment, and each that uses NLTK calls `adopt`.

    Raises:
        GuardrailsUnavailable: `guardrail_tokenizer_runtime_invalid`: NLTK was imported before and has read another
            value.
    """
    wanted = _first(target, environ)
    if environ.get("NLTK_DATA") == wanted:
        return
    if "nltk" in (sys.modules if modules is None else modules):
        raise _refusal("runtime_invalid", "NLTK_DATA would be set too late: nltk was imported before")
    environ["NLTK_DATA"] = wanted


def adopt(target: Path) -> None:
    """Put the folder first where NLTK looks in this process, whether or not NLTK is imported yet."""
    os.environ["NLTK_DATA"] = _first(target, os.environ)
    loaded = sys.modules.get("nltk")
    if loaded is not None:
        paths: list[str] = loaded.data.path
        paths[:] = [str(target), *(path for path in paths if path != str(target))]


def _first(target: Path, environ: Mapping[str, str]) -> str:
    old = [part for part in environ.get("NLTK_DATA", "").split(os.pathsep) if part and part != str(target)]
    return os.pathsep.join([str(target), *old])


def check(target: Path, asset: Asset) -> None:
    """Read every byte of the copy and compare it with its marker.

    Raises:
        GuardrailsUnavailable: `guardrail_tokenizer_cache_invalid` (folder or marker is not what it should be) or
            `guardrail_tokenizer_content_invalid` (a file is).
    """
    marker = target / MARKER
    if target.is_symlink() or not target.is_dir():
        raise _refusal("cache_invalid", "the folder of the tokenizer data is a link or no folder")
    if marker.is_symlink() or not _is_plain(marker) or marker.stat().st_size > MAX_MARKER:
        raise _refusal("cache_invalid", "the marker of the tokenizer data is missing, a link or no plain file")
    try:
        record = json.loads(marker.read_text(encoding="utf-8"))
        identity = (record["schema"], record["repo_id"], record["revision"])
        files, count, tree = record["files"], record["file_count"], record["tree_sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        raise _refusal("cache_invalid", "the marker of the tokenizer data cannot be read") from None
    if identity != (SCHEMA, asset.repo, asset.revision):
        raise _refusal("cache_invalid", "the tokenizer data is that of another repository or revision")
    if not isinstance(files, dict) or not files or count != len(files) or tree != tree_sha256(files):
        raise _refusal("cache_invalid", "the marker of the tokenizer data contradicts itself")
    try:
        found = _inventory(target)
    except OSError as error:
        raise _refusal("cache_invalid", f"the tokenizer data cannot be read ({error.strerror})") from None
    if found != files:
        wrong = sorted(name for name in found.keys() | files.keys() if found.get(name) != files.get(name))
        raise _refusal("content_invalid", f"the tokenizer data differs from its marker: {wrong[0]}")


def tree_sha256(files: dict[str, Any]) -> str:
    """SHA-256 of the files' record as sorted compact JSON."""
    return hashlib.sha256(json.dumps(files, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _inventory(root: Path) -> dict[str, dict[str, Any]]:
    """Every file below `root` but the marker.

    Raises:
        GuardrailsUnavailable: `content_invalid`: a link, a file with several names, or no regular file.
    """
    found: dict[str, dict[str, Any]] = {}
    for folder, names, files in os.walk(root, followlinks=False):
        for name in sorted(names + files):
            path = Path(folder) / name
            relative = path.relative_to(root).as_posix()
            if path.is_symlink():
                raise _refusal("content_invalid", f"the tokenizer data holds a link: {relative}")
            if name in names or relative == MARKER:
                continue
            if not _is_plain(path):
                raise _refusal("content_invalid", f"the tokenizer data holds no plain file, or one linked: {relative}")
            found[relative] = {"sha256": sha256_file(path), "size": path.stat().st_size}
    return found


def _copy(asset: Asset, hub: Hub, hashes: HashCache, target: Path) -> None:
    """Fetch, copy into a sibling folder, put that in place in one step. Who comes second uses what the first made."""
    try:
        snapshot, _ = fetch_verified(asset.repo, asset.revision, hub, [f"{SUBTREE}/*"], hashes)
    except HubProblem as problem:
        raise _refusal(_HUB[problem.kind], problem.detail) from None
    except PayloadProblem as problem:
        kind = "cache_invalid" if problem.kind in ("manifest", "unverified") else "content_invalid"
        raise _refusal(kind, f"the tokenizer data in the Hub cache: {problem.detail}") from None
    except GuardrailsUnavailable:
        raise
    except StartRefused as refused:
        raise _refusal("runtime_invalid", refused.detail) from None
    source, partial = snapshot / SUBTREE, None
    home = hub.cache.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
        partial.chmod(0o755)
        for path in sorted(p for p in source.rglob("*") if not p.is_dir()):
            real = path.resolve()
            if not real.is_relative_to(home) or not stat.S_ISREG(real.stat().st_mode):
                raise _refusal("content_invalid", "a file of the tokenizer data leads out of the Hub cache")
            copied = partial / path.relative_to(source)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(real, copied)
            copied.chmod(READ_ONLY)
        files = _inventory(partial)
        if not files:
            raise _refusal("content_invalid", "the repository has no tokenizer data")
        record = {
            "schema": SCHEMA, "repo_id": asset.repo, "revision": asset.revision, "file_count": len(files),
            "files": files, "tree_sha256": tree_sha256(files),
        }  # fmt: skip
        (partial / MARKER).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        (partial / MARKER).chmod(READ_ONLY)
        try:
            partial.replace(target)
        except OSError:
            if not _there(target):
                raise
    except OSError as error:
        said = error.strerror or type(error).__name__
        raise _refusal("materialization_failed", f"the tokenizer data cannot be written ({said})") from None
    finally:
        if partial is not None:
            with contextlib.suppress(OSError):
                shutil.rmtree(partial)


def _there(target: Path) -> bool:
    return target.exists() or target.is_symlink()


def _is_plain(path: Path) -> bool:
    """A regular file with one name: NLTK refuses any other."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1


def _refusal(category: str, detail: str) -> GuardrailsUnavailable:
    return GuardrailsUnavailable(detail, code=f"guardrail_tokenizer_{category}", remedy=_REMEDIES[category])
