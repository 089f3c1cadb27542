"""A lock between processes, freed by the kernel when its holder dies."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cosmos3_serve.errors import StartRefused


@contextmanager
def process_lock(path: Path, *, timeout_s: float = 600.0, poll_s: float = 0.05) -> Iterator[None]:
    """Hold an exclusive lock on `path` (created if missing, never removed: removing it would race with a waiter).

    Raises:
        StartRefused: the lock file cannot be written, or another process kept the lock for `timeout_s` seconds.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StartRefused(
            f"the cache cannot be written: {error.strerror}", remedy="set --cache-dir to a writable folder"
        ) from None
    try:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StartRefused(
                        f"another process has held the cache's lock {path.name} for {timeout_s:.0f} s",
                        remedy="wait for it, or set --cache-dir to another folder",
                    ) from None
                time.sleep(poll_s)
        yield
    finally:
        os.close(fd)
