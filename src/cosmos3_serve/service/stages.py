"""Stages: how long each stage of a start took, so that a slow start says where it was slow."""

from __future__ import annotations

import os
import time

from cosmos3_serve.service.reaper import start_time

_IMPORTED = time.monotonic()


class Stages:
    """`seconds` holds stage name -> seconds from the start of this process to the end of the stage.

    Where the system does not tell when the process began, the time runs from the import of this module.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = time.monotonic() - _age()

    def done(self, stage: str) -> None:
        """Note the end of a stage; only the first time counts."""
        self.seconds.setdefault(stage, round(time.monotonic() - self._began, 3))


def _age() -> float:
    """Seconds that this process has lived."""
    ticks = start_time(os.getpid())
    if ticks is None or not hasattr(time, "CLOCK_BOOTTIME"):
        return time.monotonic() - _IMPORTED
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
