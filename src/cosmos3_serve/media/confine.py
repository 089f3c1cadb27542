"""Confine the process that opens strangers' files: no credentials, no network, bounded memory and file size."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from contextlib import suppress

# What Python and its packages need to start; credentials, tokens and proxies are in none of these.
_KEPT = ("PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR")
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000


def environ(parent: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of the process: of the parent's only what starts an interpreter."""
    kept = {name: parent[name] for name in _KEPT if name in parent}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def confine(*, memory_bytes: int, file_bytes: int) -> bool:
    """Limit this process; call it before threads start. Returns whether the network could be taken from it.

    Args:
        memory_bytes: of address space.
        file_bytes: of any file that it writes.
    """
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    with suppress(OSError):
        os.nice(5)
    return _leave_network()


def _leave_network() -> bool:
    """Into a network namespace of its own. Root keeps its user namespace: in a new one it could not read its files."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWNET) == 0:
            return True
        return os.geteuid() != 0 and libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) == 0
    except (OSError, AttributeError):  # no such call on this system
        return False
