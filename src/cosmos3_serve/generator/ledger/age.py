"""LedgerClock: how long the service has kept a batch, whatever the wall clock does meanwhile.

It advances with the monotonic clock while the service runs, and by the wall clock only over the time between two
processes. So a wall clock that jumps (set by hand, or by NTP after a wrong start) expires nothing.
"""

from __future__ import annotations

from cosmos3_serve.generator.ports import Clock


class LedgerClock:
    """Seconds since the ledger was made."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._base = 0.0
        self._origin = clock.monotonic()

    def resume(self, stored: tuple[float, float] | None) -> None:
        """Go on from (reading, wall clock) as last stored; a wall clock that lies before that adds nothing."""
        self._origin = self._clock.monotonic()
        if stored is not None:
            age, wall = stored
            self._base = age + max(0.0, self._clock.now() - wall)

    def now(self) -> float:
        return self._base + self._clock.monotonic() - self._origin
