"""Find every process that a test started, however it detached itself: by a mark in its environment."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

from cosmos3_serve.service import reaper

MARK = "COSMOS_TEST_MARK"


def new_mark() -> dict[str, str]:
    """An environment entry that all descendants inherit."""
    return {MARK: uuid.uuid4().hex}


def marked(mark: dict[str, str]) -> dict[int, str]:
    """Living processes (no zombies) that carry the mark: pid -> command line."""
    entry = f"{MARK}={mark[MARK]}".encode()
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if entry not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z":
                found[int(folder.name)] = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
        except OSError:
            continue
    return found


def left_after(mark: dict[str, str], within_s: float = 10.0) -> dict[int, str]:
    """What is still alive after a grace period; {} is what a test wants."""
    deadline = time.monotonic() + within_s
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def all_gone(processes: list[reaper.Process], within_s: float) -> bool:
    """Whether none of them is alive, within the time."""
    deadline = time.monotonic() + within_s
    while any(reaper.start_time(pid) == started for pid, started in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
