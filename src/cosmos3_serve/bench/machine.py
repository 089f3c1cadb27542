"""What a result says about where it ran: classes and versions, never a name."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import cosmos3_serve

PACKAGES = ("httpx", "av", "aiperf")


def describe() -> dict[str, str | int | float | list[float]]:
    """The client's machine. No host name, no user, no path."""
    found: dict[str, str | int | float | list[float]] = {
        "cores": os.cpu_count() or 0,
        "processor": _processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "cosmos3-serve": cosmos3_serve.__version__,
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return "unknown"
