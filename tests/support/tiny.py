"""The tiny checkpoint for tests: built once per session, or once per machine with COSMOS3_TEST_CACHE set."""

import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

from cosmos3_serve.weights.checkpoint import Checkpoint, resolve_checkpoint


def test_cache() -> Path:
    """Where tests keep what is expensive to build. Shared between runs; `ensure_tiny` verifies it on each use."""
    configured = os.environ.get("COSMOS3_TEST_CACHE")
    return Path(configured) if configured else Path(tempfile.gettempdir()) / f"cosmos3-test-cache-{os.getuid()}"


test_cache.__test__ = False  # type: ignore[attr-defined]


@cache
def tiny_checkpoint() -> Checkpoint:
    return resolve_checkpoint("tiny", test_cache())


def with_tiny(cache: Path) -> Path:
    """The folder as a cache that holds the tiny checkpoint already, as after an earlier start."""
    built = tiny_checkpoint().path
    shutil.copytree(built, cache / built.name, dirs_exist_ok=True)
    return cache
