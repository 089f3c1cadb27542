"""One deadline for the whole submission (the baseline's timeout was per network phase, so it never ended)."""

from __future__ import annotations

import time
from collections.abc import Callable

from cosmos3_serve.errors import Incomplete


class Deadline:
    """`seconds` from now on; every wait of the client is cut to what is left of it."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._ends = clock() + seconds

    def left(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._ends - self._clock())

    def exceeded(self, doing: str) -> Incomplete:
        """The failure to raise when it has passed; the caller's journal decides what can be resumed."""
        return Incomplete(f"the deadline of {self.seconds:g} s passed while {doing}", code="deadline_exceeded")
