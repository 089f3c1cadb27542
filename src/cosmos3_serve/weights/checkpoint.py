"""From what an operator wrote after `--checkpoint` to a verified directory of known bytes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from cosmos3_serve.errors import CheckpointUnavailable, UsageError
from cosmos3_serve.weights import assets
from cosmos3_serve.weights.blockworld import BLOCKWORLD, find_blockworld
from cosmos3_serve.weights.completeness import missing_payload
from cosmos3_serve.weights.hub import fetch_snapshot
from cosmos3_serve.weights.manifest import HashCache, payload_digest, read_payload
from cosmos3_serve.weights.tiny import ensure_tiny

Weights = Literal["random", "blockworld", "pretrained", "unknown"]

TINY = "tiny"
NANO = assets.NANO.repo
PINNED = {NANO: assets.NANO.revision}
ALIASES = {"Cosmos3-Nano": NANO}

_HUB_ID = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+))?")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on this machine's disk.

    `digest` is the SHA-256 over the sorted (path, size, SHA-256) of its payload files; `weights` says whether they
    were trained: "pretrained" only for revisions pinned here, "random" where the checkpoint says so itself. `verified`
    says whether every byte was checked against hashes that the Hub declares; a local directory has none.
    """

    path: Path
    id: str
    revision: str
    digest: str
    weights: Weights
    verified: bool = False


def resolve_checkpoint(
    text: str, cache_dir: Path, *, environ: Mapping[str, str] | None = None, framework: bool = False
) -> Checkpoint:
    """Resolve `tiny`, a local directory, a Hub id (`org/name` or `org/name@revision`) or an alias (`Cosmos3-Nano`).

    A local directory wins over a Hub id of the same spelling. Hub files are fetched at a pinned revision where one is
    known, into huggingface_hub's own cache (`HF_HOME`), and with `HF_HUB_OFFLINE` only read from there; either way
    every byte is checked against the hashes that the Hub declares. Hashing a 30 GB checkpoint takes minutes; the result
    is remembered in `cache_dir` by size, times and inode.

    Args:
        framework: for the framework engine, which also loads layouts of its own and does not know `tiny`.

    Raises:
        UsageError: the text is neither of these, or names a directory that does not exist.
        CheckpointUnavailable: access denied, not found, offline and not cached, or files are missing, cut short or
            not those that the Hub declares.
        StartRefused: the tiny checkpoint cannot be built.
    """
    environ = os.environ if environ is None else environ
    text = text.strip()
    if text == TINY and framework:
        raise UsageError(
            "the tiny checkpoint is for the diffusers engine and the reasoner; the framework does not load it",
            remedy="name a checkpoint of the framework, or pass --engine diffusers",
        )
    if text == BLOCKWORLD and framework:
        raise UsageError(
            "the block-world checkpoint is for the diffusers engine and the reasoner; the framework does not load it",
            remedy="name a checkpoint of the framework, or pass --engine diffusers",
        )
    if text == BLOCKWORLD:
        path = find_blockworld()
        recipe = f"recipe-{_declared(path).get('recipe', 0)}"
        return replace(_checkpoint(path, BLOCKWORLD, recipe, cache_dir), weights="blockworld", verified=True)
    if text == TINY:
        path = ensure_tiny(cache_dir)
        return _checkpoint(path, TINY, f"seed-{_declared(path).get('seed', 0)}", cache_dir)
    local = Path(text).expanduser()
    if text and local.is_dir():
        return _checkpoint(local.resolve(), local.resolve().name, "local", cache_dir, framework=framework)
    if text.startswith(("/", ".", "~")):
        raise UsageError(
            f"checkpoint directory {text} does not exist",
            remedy="name an existing directory, a Hub id such as nvidia/Cosmos3-Nano, `blockworld`, or `tiny`",
        )
    named = hub_name(text)
    if named is None:
        raise UsageError(
            f"checkpoint {text!r} is no directory and no Hub id",
            remedy="name an existing directory, a Hub id such as nvidia/Cosmos3-Nano, `blockworld`, or `tiny`",
        )
    repo, revision = named
    snapshot, commit = fetch_snapshot(repo, revision, environ=environ, hashes=_hashes(cache_dir))
    found = _checkpoint(snapshot, repo, commit, cache_dir, pinned=PINNED.get(repo) == commit, framework=framework)
    return replace(found, verified=True)


def hub_name(text: str) -> tuple[str, str | None] | None:
    """(repository, revision or its pin) of a Hub id or alias; None where the text is a local directory or neither."""
    text = text.strip()
    if text and Path(text).expanduser().is_dir():
        return None
    match = _HUB_ID.fullmatch(ALIASES.get(text, text))
    return (match["repo"], match["revision"] or PINNED.get(match["repo"])) if match else None


def _hashes(cache_dir: Path) -> HashCache:
    return HashCache(cache_dir / "checkpoint-hashes.json")


def _checkpoint(
    path: Path, id: str, revision: str, cache_dir: Path, *, pinned: bool = False, framework: bool = False
) -> Checkpoint:
    missing = missing_payload(path, framework=framework)
    if missing:
        shown = "; ".join(missing[:3]) + (f"; and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise CheckpointUnavailable(
            f"checkpoint {id} is incomplete: {shown}",
            code="checkpoint_incomplete",
            remedy="fetch or copy it again; nothing was loaded",
        )
    hashes = _hashes(cache_dir)
    digest = payload_digest(read_payload(path, hashes))
    hashes.save()
    weights: Weights = "unknown"
    if _declared(path).get("weights") == "random":
        weights = "random"
    elif pinned:
        weights = "pretrained"
    return Checkpoint(path, id, revision, digest, weights)


def _declared(path: Path) -> dict[str, Any]:
    """What `WEIGHTS.json` says of the checkpoint; empty where there is none."""
    try:
        value = json.loads((path / "WEIGHTS.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
