"""Files below a root, reached through real directories only: no link on the way is ever followed. Blocking."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def is_file_below(root: Path, path: str) -> bool:
    """Whether `path` is still a regular file below `root`, reached through no link."""
    descriptor = open_below(root, path)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


def open_below(root: Path, path: str) -> int | None:
    """A descriptor of a regular file below `root`, reached through real directories only; None if it is no such."""
    *folders, name = path.split("/")
    here = -1
    try:
        here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for folder in folders:
            inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = inner
        # O_NONBLOCK: a FIFO in place of a file must not block us; it has no meaning for regular files.
        found = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
    except OSError:
        return None
    finally:
        if here >= 0:
            os.close(here)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        return None
    return found
