"""What a tree of processes holds and burns, from /proc: proportional set size and CPU seconds, by role."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from cosmos3_serve.service.reaper import descendants

TICKS = os.sysconf("SC_CLK_TCK")
ROLES = (
    ("ingress replica", r"^ray::ServeReplica.*[:#]ingress"),
    ("model replica", r"^ray::ServeReplica"),
    ("Serve controller", r"^ray::ServeController"),
    ("Ray worker, idle", r"^ray::IDLE"),
    ("Ray agents", r"^ray::|dashboard/(agent|dashboard)|runtime_env/agent|log_monitor|autoscaler/_private/monitor"),
    ("Ray core (gcs, raylet)", r"gcs_server|/raylet"),
    ("service process", r"cosmos3_serve\.generator\.serve|cosmos3"),
)


def tree(root: int) -> list[int]:
    return [root, *(pid for pid, _ in descendants(root))]


def role(pid: int) -> str:
    with contextlib.suppress(OSError):
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return next((name for name, pattern in ROLES if re.search(pattern, line)), "other")
    return "gone"


def replica(root: int, name: str) -> int:
    """The process id of a replica: `ingress replica` or `model replica`."""
    return next(pid for pid in tree(root) if role(pid) == name)


def pss_mb(pid: int) -> float:
    """Memory of a process, with what it shares divided by how many share it, MB."""
    with contextlib.suppress(OSError):
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)
        return int(found[1]) * 1024 / 1e6 if found else 0.0
    return 0.0


def pss_by_role(root: int) -> dict[str, float]:
    """MB by role, largest first."""
    found: dict[str, float] = {}
    for pid in tree(root):
        found[role(pid)] = found.get(role(pid), 0.0) + pss_mb(pid)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def cpu_s(pids: list[int]) -> float:
    """CPU seconds that living processes have used so far."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total / TICKS
