"""The engine on a core of its own, everything else on the others: as a GPU leaves the CPU to the service."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path


@contextlib.contextmanager
def apart(engines: Sequence[int], others: Sequence[int]) -> Iterator[None]:
    """While it lasts, all threads of the processes `engines` (process ids) run on the first core that this process may
    use, and those of `others` on the remaining ones. Threads that begin meanwhile stay where their parent is."""
    may = sorted(os.sched_getaffinity(0))
    try:
        _put(engines, {may[0]})
        _put(others, set(may[1:]))
        yield
    finally:
        _put([*engines, *others], set(may))


def _put(pids: Sequence[int], where: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(int(thread.name), where)
