"""Fetch from the Hub at run time and prove what was fetched, with each way it can fail under its own name.

The real huggingface_hub does the fetching, into its own cache; what lies there is then checked byte for byte against
what the Hub declares (`payload`). With `HF_HUB_OFFLINE`, or while the Hub cannot be reached, only what is in the cache
and was verified before is used.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosmos3_serve.errors import CheckpointUnavailable, StartRefused
from cosmos3_serve.weights.assets import Asset
from cosmos3_serve.weights.hub_env import Hub
from cosmos3_serve.weights.manifest import HashCache
from cosmos3_serve.weights.payload import (
    MAX_FILES,
    HubFile,
    PayloadProblem,
    declared_digest,
    manifest_path,
    read_manifest,
    selected,
    verify,
    write_manifest,
)

log = logging.getLogger(__name__)

# Weights as safetensors only: pickled weights would run code on loading.
PATTERNS = ("*.json", "*.safetensors", "*.txt", "*.jinja", "*.model")
COMMIT = re.compile(r"[0-9a-f]{40}")
TRANSPORTS = frozenset({"httpx", "httpx2", "httpcore", "requests", "urllib3"})


class HubProblem(Exception):
    """`kind`: denied, not_found, offline, unreachable, rate_limited, failed, cache (it cannot be written)."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Proved:
    """An asset on this machine's disk, every byte checked.

    Args:
        digest: SHA-256 over path, size and hash of its files, as the Hub declares them.
    """

    repo: str
    revision: str
    purpose: str
    digest: str
    snapshot: Path


def prove_asset(asset: Asset, hub: Hub, hashes: HashCache) -> Proved:
    """Fetch what lacks of an asset and check every byte.

    Raises:
        HubProblem, PayloadProblem, StartRefused: as `fetch_verified`.
    """
    snapshot, commit, files = _verified(asset.repo, asset.revision, hub, asset.files or PATTERNS, hashes)
    return Proved(asset.repo, commit, asset.purpose, declared_digest(files), snapshot)


def fetch_verified(
    repo: str, revision: str | None, hub: Hub, patterns: Sequence[str], hashes: HashCache
) -> tuple[Path, str]:
    """(directory, commit) of `repo` at `revision` (None: the Hub's current main), every byte checked.

    Raises:
        HubProblem: it cannot be had.
        PayloadProblem: it was had, and is not what the Hub declares; or there is nothing to check it against.
        StartRefused: huggingface_hub is not installed.
    """
    return _verified(repo, revision, hub, patterns, hashes)[:2]


def _verified(
    repo: str, revision: str | None, hub: Hub, patterns: Sequence[str], hashes: HashCache
) -> tuple[Path, str, list[HubFile]]:
    """(directory, commit, the files that the patterns name)."""
    commit = revision or "main"
    declared: list[HubFile] | None = None
    if not hub.offline:
        try:
            commit, declared = _declared(repo, commit, hub)
        except HubProblem as problem:
            if problem.kind != "unreachable":
                raise
            log.warning("the Hub cannot be reached: what is in the cache is used if it was verified before")
    folder = hub.cache / f"models--{repo.replace('/', '--')}"
    if declared is None:
        commit = commit if COMMIT.fullmatch(commit) else _cached_commit(folder, commit)
    snapshot = folder / "snapshots" / commit
    manifest = manifest_path(hub.home, repo, commit)
    stored = read_manifest(manifest, repo, commit) if commit else None
    if declared is None:
        if not commit or not snapshot.is_dir():
            why = "HF_HUB_OFFLINE is set" if hub.offline else "the Hub cannot be reached"
            raise HubProblem("offline", f"{_where(repo, revision)} is not in the local cache and {why}")
        if stored is None:
            raise PayloadProblem("unverified", f"{repo} is in the cache, but was never checked against the Hub")
        declared = stored
    else:
        if stored is not None and stored != declared:
            raise PayloadProblem("manifest", f"the Hub declares other files of {repo} than the stored manifest")
        _download(repo, commit, hub, patterns)
    wanted = selected(declared, patterns)
    verify(snapshot, declared, wanted, hashes, inside=folder, what=repo)
    if stored is None:
        try:
            write_manifest(manifest, repo, commit, declared)
        except OSError as error:
            log.warning("the manifest of %s cannot be kept: %s; it will not start offline", repo, error.strerror)
    return snapshot, commit, wanted


def fetch_snapshot(
    repo: str, revision: str | None, *, environ: Mapping[str, str], hashes: HashCache
) -> tuple[Path, str]:
    """(directory, commit) of a checkpoint, every byte checked.

    Raises:
        CheckpointUnavailable: codes `checkpoint_access_denied`, `checkpoint_not_found`, `checkpoint_offline`,
            `checkpoint_incomplete`, `checkpoint_altered`, `checkpoint_unverified`, `checkpoint_manifest`.
        StartRefused: huggingface_hub is not installed.
        UsageError: `HF_ENDPOINT` is no address.
    """
    with _as_checkpoint(repo):
        return fetch_verified(repo, revision, Hub.from_environ(environ), PATTERNS, hashes)


def prove_checkpoint_asset(asset: Asset, hub: Hub, hashes: HashCache) -> Proved:
    """`prove_asset` for what belongs to a checkpoint; raises as `fetch_snapshot`."""
    with _as_checkpoint(asset.repo):
        return prove_asset(asset, hub, hashes)


@contextmanager
def _as_checkpoint(repo: str) -> Iterator[None]:
    """Each problem as the refusal of a checkpoint."""
    try:
        yield
    except HubProblem as problem:
        code, remedy = _HUB[problem.kind]
        raise CheckpointUnavailable(problem.detail, code=code, remedy=remedy.format(repo=repo)) from None
    except PayloadProblem as problem:
        code, remedy = _PAYLOAD[problem.kind]
        raise CheckpointUnavailable(problem.detail, code=code, remedy=remedy) from None


_OFFLINE = "fetch it once with access (start the service without HF_HUB_OFFLINE), or name a local directory"
_HUB: dict[str, tuple[str | None, str]] = {
    "denied": (
        "checkpoint_access_denied",
        "accept the licence at https://huggingface.co/{repo} and set HF_TOKEN of that account",
    ),
    "not_found": (
        "checkpoint_not_found",
        "check the spelling and the revision, and set HF_TOKEN if the repository is private",
    ),
    "offline": ("checkpoint_offline", _OFFLINE),
    "unreachable": ("checkpoint_offline", _OFFLINE),
    "rate_limited": (None, "try again later with HF_TOKEN set, or name a local directory"),
    "failed": (None, "try again later, or name a local directory"),
    "cache": (None, "set HF_HOME or NPA_MODEL_CACHE_DIR to a writable folder with enough space"),
}
_AGAIN = "remove this revision from the Hub cache and start again with access; nothing was loaded"
_PAYLOAD = {
    "empty": ("checkpoint_incomplete", _AGAIN),
    "incomplete": ("checkpoint_incomplete", _AGAIN),
    "altered": ("checkpoint_altered", _AGAIN),
    "unverified": ("checkpoint_unverified", "start once without HF_HUB_OFFLINE: the check needs the Hub's hashes once"),
    "manifest": ("checkpoint_manifest", "remove cosmos3-payload/ from HF_HOME and start again with access"),
}


def _declared(repo: str, revision: str, hub: Hub) -> tuple[str, list[HubFile]]:
    """The commit behind `revision`, and every file that the Hub declares for it, with its hash."""
    api = _client().HfApi(endpoint=hub.endpoint, token=hub.token or None)
    files: list[HubFile] = []
    try:
        if not COMMIT.fullmatch(revision):
            revision = str(api.repo_info(repo, revision=revision).sha)
        for entry in api.list_repo_tree(repo, recursive=True, revision=revision):
            if hasattr(entry, "blob_id"):
                lfs = entry.lfs
                size = int(lfs.size if lfs else entry.size)
                files.append(HubFile(entry.path, size, lfs.sha256 if lfs else "", "" if lfs else entry.blob_id))
            if len(files) > MAX_FILES:
                raise HubProblem("failed", f"{repo} has more than {MAX_FILES} files")
    except HubProblem:
        raise
    except Exception as error:
        raise _problem(error, repo, revision) from None
    return revision, sorted(files)


def _download(repo: str, commit: str, hub: Hub, patterns: Sequence[str]) -> None:
    try:
        _client().snapshot_download(
            repo, revision=commit, allow_patterns=list(patterns), cache_dir=str(hub.cache),
            endpoint=hub.endpoint, token=hub.token or None,
        )  # fmt: skip
    except Exception as error:
        raise _problem(error, repo, commit) from None


def _client() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise StartRefused(
            "fetching from the Hub needs huggingface_hub, which is not installed",
            remedy="install the extra: pip install '.[diffusers]' in a checkout of cosmos3-serve, "
            "or name a local directory",
            code="dependency_missing",
        ) from None
    return huggingface_hub


def _problem(error: Exception, repo: str, revision: str) -> HubProblem:
    """What huggingface_hub's error means. An error that is none of these is a fault, and passes as it is."""
    from huggingface_hub import errors

    where = _where(repo, revision)
    if isinstance(error, errors.GatedRepoError):
        return HubProblem("denied", f"access to {repo} is denied: it is gated and this token has no entitlement")
    if isinstance(error, (errors.RepositoryNotFoundError, errors.RevisionNotFoundError)):
        # The Hub answers a private repository as if it did not exist.
        return HubProblem("not_found", f"{where} does not exist on the Hub, or this token may not see it")
    if isinstance(error, (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled)):
        return HubProblem("unreachable", f"{where} is not in the local cache and the Hub cannot be reached")
    if isinstance(error, errors.HfHubHTTPError):
        status = getattr(error.response, "status_code", None)
        if status in (401, 403):
            return HubProblem("denied", f"access to {repo} is denied (HTTP {status})")
        kind = "rate_limited" if status == 429 else "failed"
        return HubProblem(kind, f"the Hub answered HTTP {status} for {where}")
    foreign = type(error).__module__.partition(".")[0] in TRANSPORTS
    if foreign or isinstance(error, (ConnectionError, TimeoutError)):
        return HubProblem("unreachable", f"{where} is not in the local cache and the Hub cannot be reached")
    if isinstance(error, OSError):
        said = error.strerror or type(error).__name__
        return HubProblem("cache", f"{where} cannot be written to the Hub cache: {said}")
    return HubProblem("failed", f"fetching {where} failed ({type(error).__name__})")


def _cached_commit(folder: Path, name: str) -> str:
    """The commit that a branch or tag meant when it was last fetched; empty if it never was."""
    try:
        commit = (folder / "refs" / name).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
    return commit if COMMIT.fullmatch(commit) else ""


def _where(repo: str, revision: str | None) -> str:
    return f"{repo}@{revision}" if revision else repo
