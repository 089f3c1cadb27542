"""Where generated and fetched files are cached unless somebody says otherwise."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache() -> Path:
    """`$NPA_COSMOS3_CACHE` (a model cache sets it), else `$XDG_CACHE_HOME/cosmos3-serve`, `~/.cache/cosmos3-serve`."""
    own = os.environ.get("NPA_COSMOS3_CACHE", "").strip()
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cosmos3-serve"
