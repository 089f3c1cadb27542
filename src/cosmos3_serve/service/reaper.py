"""Reaper: ends exactly the processes that a cluster started, when whoever started them is gone.

Ray ties its head processes to the driver, but its agents outlive a SIGKILL of the driver by more than half a minute.
Each cluster therefore starts this file as a script (standard library only, nothing of the package imported). It waits
for the pipe to the driver to close, then ends what the driver's list names and removes the cluster's directory. A
process is named by its id and its start time, so that a reused id never hits a stranger.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

RECORD = "processes.json"
TERM_S = 3.0

Process = tuple[int, int]  # id, start time in clock ticks since boot


def start_time(pid: int) -> int | None:
    """Start time of a living process; None when it is gone, a zombie, or unknown on this system."""
    try:
        # The command may hold blanks and parentheses: count from the last one.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def children(parent: int) -> list[Process]:
    """The living children of a process. Empty where there is no /proc."""
    return [(pid, started) for pid in _family().get(parent, ()) if (started := start_time(pid)) is not None]


def descendants(root: int) -> list[Process]:
    """Every living process below `root`, parents first. Empty where there is no /proc."""
    family = _family()
    found: list[Process] = []
    waiting = list(family.get(root, ()))
    while waiting:
        pid = waiting.pop(0)
        started = start_time(pid)
        if started is not None:
            found.append((pid, started))
        waiting.extend(family.get(pid, ()))
    return found


def _family() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, UnicodeDecodeError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    return children


def record(directory: Path, processes: Iterable[Process]) -> None:
    """Write the list atomically: the reaper may read it at any moment."""
    temporary = directory / (RECORD + ".new")
    temporary.write_text(json.dumps(list(processes)))
    temporary.replace(directory / RECORD)


def recorded(directory: Path) -> list[Process]:
    try:
        return [(int(pid), int(started)) for pid, started in json.loads((directory / RECORD).read_text())]
    except (OSError, ValueError, TypeError):
        return []


def end(processes: Iterable[Process], term_s: float = TERM_S) -> list[int]:
    """SIGTERM, then after `term_s` SIGKILL, to those of the list that still live. Returns the ids that were killed."""
    living = _signal(processes, signal.SIGTERM)
    deadline = time.monotonic() + term_s
    while living and time.monotonic() < deadline:
        time.sleep(0.05)
        living = [p for p in living if start_time(p[0]) == p[1]]
    return [pid for pid, _ in _signal(living, signal.SIGKILL)]


def _signal(processes: Iterable[Process], number: signal.Signals) -> list[Process]:
    living = []
    for pid, started in processes:
        if start_time(pid) == started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
                living.append((pid, started))
    return living


def main(directory: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # ends with the driver, not with the driver's terminal
    sys.stdin.buffer.read()
    end(recorded(directory), term_s=1.0)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
