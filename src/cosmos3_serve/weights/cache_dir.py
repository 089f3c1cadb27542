"""Where generated and fetched files are cached unless somebody says otherwise."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache() -> Path:
    """`$XDG_CACHE_HOME/cosmos3-serve`, else `~/.cache/cosmos3-serve`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cosmos3-serve"
