"""Memory of a process that serves: the C library's for large bodies, the collector's while modules load."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Iterator

# glibc's names in malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MMAP_BYTES = 32 * 1024 * 1024  # the most that glibc takes
TRIM_BYTES = 128 * 1024 * 1024


def keep_freed_memory() -> bool:
    """Freed buffers of up to 32 MiB stay for the next body, at most 128 MiB of them.

    By default each body's buffers go back to the kernel and come anew: some 250 page faults for a video of 1 MiB.
    Returns whether the C library took it; another than glibc does not, and nothing changes.
    """
    if not sys.platform.startswith("linux"):
        return False
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        return bool(mallopt(M_MMAP_THRESHOLD, MMAP_BYTES) and mallopt(M_TRIM_THRESHOLD, TRIM_BYTES))
    return False


def freeze_started() -> None:
    """Everything that is there once a service has started stays: collections need not walk through it again."""
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No collections within: while modules load there is no garbage, and each look for some walks through all of them.

    A third of the CPU that torch and diffusers take to load. What is there at the end stays: no later collection walks
    through it either. Not around work that makes garbage.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if running:
            gc.enable()
