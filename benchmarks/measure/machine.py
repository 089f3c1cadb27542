"""The conditions of a run: the class of the machine, never its name; versions; how busy it was with other things."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGES = ("cosmos3-serve", "torch", "diffusers", "transformers", "ray", "obstore", "moto")
SERVING = ("uvicorn", "uvloop", "httptools", "aiohttp", "pybase64", "av")


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Machine:
    """Taken before a run; `conditions` closes it."""

    load_before: float

    @classmethod
    def look(cls) -> Machine:
        return cls(os.getloadavg()[0])

    def conditions(self, seconds: float) -> dict[str, Any]:
        before, after = round(self.load_before, 1), round(os.getloadavg()[0], 1)
        return {
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
            "machine": f"{platform.machine()}, {cores()} cores, {_memory_gb()} GB memory, {_gpu() or 'CPU only'}",
            "weights": "random",
            "load average": f"{before} before, {after} after (1 min; this run's own work is in the second)",
            "source": _revision(),
            "python": platform.python_version(),
            "versions": ", ".join(f"{name} {found}" for name in PACKAGES + SERVING if (found := _version(name))),
            "seconds": round(seconds),
        }


def _gpu() -> str:
    """Kind of the first GPU, empty without any."""
    try:
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        return next(iter(subprocess.run(query, capture_output=True, text=True).stdout.splitlines()), "")
    except OSError:
        return ""


def _memory_gb() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _revision() -> str:
    def git(*what: str) -> str:
        return subprocess.run(["git", *what], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    head = git("rev-parse", "--short=12", "HEAD") or os.environ.get("NPA_IMAGE_SOURCE_SHA", "unknown")[:12]
    return head + (" with local changes in src" if git("status", "--porcelain", "--", "src") else "")
