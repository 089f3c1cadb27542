"""Hardware: what one machine gives a replica. Asked without importing torch."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

GIB = 1024**3
ASK_S = 20.0
FP8_SINCE = 8.9  # compute capability: Ada, Hopper and later
BF16_SINCE = 8.0


@dataclass(frozen=True, slots=True)
class Hardware:
    """
    Args:
        gpu_bytes: memory of one GPU, 0 without.
        gpus: of this machine.
        capability: compute capability of the GPU, 0 without.
        cpus: that this process may use.
        host_bytes: memory of the machine, or of the container where that is less.
    """

    kind: Literal["cpu", "cuda"]
    cpus: int
    host_bytes: int
    gpus: int = 0
    gpu_bytes: int = 0
    capability: float = 0.0


def detect(environ: Mapping[str, str] | None = None) -> Hardware:
    """This machine. `CUDA_VISIBLE_DEVICES` set and empty means no GPU, whatever is built in."""
    environ = os.environ if environ is None else environ
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    host = _host_bytes()
    rows = [] if environ.get("CUDA_VISIBLE_DEVICES", "all") == "" else _gpus()
    if not rows:
        return Hardware("cpu", cpus, host)
    return Hardware(
        "cuda",
        cpus,
        host,
        gpus=len(rows),
        gpu_bytes=min(size for size, _ in rows),
        capability=min(capability for _, capability in rows),
    )


def _gpus() -> list[tuple[int, float]]:
    """Memory in bytes and compute capability of each GPU; empty where the driver's tool is missing or fails."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, "--query-gpu=memory.total,compute_cap", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, check=True).stdout
        rows = [line.split(",") for line in said.splitlines() if line.strip()]
        return [(int(float(memory) * 1024**2), float(capability)) for memory, capability in rows]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []


def _host_bytes() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(limit).read_text()))
        except (OSError, ValueError):
            continue
    return total
