"""The tiny checkpoint: random weights, about 17 MB, built at first use into the cache and loaded by both engines.

It stands in for the real model wherever none is at hand (tests, CI, quickstart). Its `WEIGHTS.json` says that the
weights are random, and everything generated with it carries that label.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from pathlib import Path

from cosmos3_serve.errors import StartRefused
from cosmos3_serve.weights.lock import process_lock
from cosmos3_serve.weights.manifest import PayloadFile, read_payload, write_atomic
from cosmos3_serve.weights.tiny_recipe import RECIPE

log = logging.getLogger(__name__)

MANIFEST = ".manifest.json"  # hidden: it lists the payload and is not part of it


def ensure_tiny(cache_dir: Path, seed: int = 0) -> Path:
    """Path of the tiny checkpoint for `seed` in `cache_dir`, built (some ten seconds) or verified (well under one).

    Safe from several processes at once: one builds, the others wait. A copy whose bytes differ from its manifest is
    built again. Deterministic: the same seed and library versions give the same bytes.

    Raises:
        StartRefused: the cache cannot be written, the libraries to build with are missing, or the build failed.
    """
    path = cache_dir / f"tiny-cosmos3-r{RECIPE}-s{seed}"
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(error) from None
    with process_lock(cache_dir / f"{path.name}.lock"):
        damage = _damage(path)
        if damage is None:
            return path
        if path.exists():
            log.warning("the cached tiny checkpoint is damaged (%s) and is built again", damage)
        _build(path, seed)
    return path


def _damage(path: Path) -> str | None:
    """What is wrong with the copy at `path`; None if every byte is as its manifest says."""
    try:
        listed = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["files"]
        expected = sorted(PayloadFile(*entry) for entry in listed)
    except FileNotFoundError:
        return "no manifest"
    except (OSError, ValueError, KeyError, TypeError):
        return "unreadable manifest"
    try:
        found = read_payload(path)
    except OSError as error:
        return f"unreadable file: {error.strerror}"
    if found == expected and expected:
        return None
    wrong = sorted({f.path for f in set(found) ^ set(expected)})
    return f"{len(wrong)} files differ, first {wrong[0]}" if wrong else "empty manifest"


def _build(path: Path, seed: int) -> None:
    try:
        from cosmos3_serve.weights.tiny_build import build

        partial = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    except OSError as error:
        raise _unwritable(error) from None
    try:
        build(partial, seed)
        files = [[f.path, f.size, f.sha256] for f in read_payload(partial)]
        write_atomic(partial / MANIFEST, json.dumps({"files": files}, indent=1) + "\n")
        if path.exists():
            shutil.rmtree(path)
        partial.rename(path)
    except ImportError as error:
        raise StartRefused(
            f"the tiny checkpoint cannot be built: {error.name or error} is not installed",
            remedy="install the extra: pip install '.[diffusers]' in a checkout of cosmos3-serve",
            code="dependency_missing",
        ) from None
    except OSError as error:
        raise _unwritable(error) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _unwritable(error: OSError) -> StartRefused:
    return StartRefused(
        f"the tiny checkpoint cannot be written to the cache: {error.strerror or error}",
        remedy="set --cache-dir to a writable folder with 50 MB free",
    )
