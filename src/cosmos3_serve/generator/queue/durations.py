"""Durations: how long a sample of a shape takes, learned from the waves that ran.

The expected time of a shape is the largest seen so far (docs/contract.md 7), so an expectation never gets too hopeful.
A wave is expected to take the sum of its samples' times: denoising is compute bound at the sizes where a deadline
matters, and where it is not the sum errs on the safe side.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

RATE_WEIGHT = 0.2
DEFAULT_SAMPLE_S = 10.0


class Durations:
    """Largest times by shape, and the service's recent pace. Bounded: the shapes not seen for longest are forgotten."""

    def __init__(self, limit: int = 4096) -> None:
        self._limit = limit
        self._largest: OrderedDict[Hashable, float] = OrderedDict()
        self._pace: float | None = None
        self.changes = 0

    def expected(self, shape: Hashable) -> float | None:
        """Seconds that one sample of this shape takes, or None if none was measured yet."""
        return self._largest.get(shape)

    def known(self) -> list[tuple[Hashable, float]]:
        """Every shape with its seconds, those not seen for longest first."""
        return list(self._largest.items())

    def restore(self, known: Sequence[tuple[Hashable, float]]) -> None:
        """Add what an earlier process measured; what is known here already was seen later."""
        fresh, self._largest = self._largest, OrderedDict(known)
        for shape, seconds in fresh.items():
            self._set(shape, seconds)
        self._forget()

    def learn(self, shapes: Sequence[Hashable], seconds: float) -> None:
        """A wave of these shapes took this long. A shared wave slower than expected slows all its shapes alike."""
        known = [self._largest.get(shape) for shape in shapes]
        total = sum(share for share in known if share is not None)
        unknown = known.count(None)
        if unknown:
            share = max(seconds - total, seconds / len(shapes)) / unknown
            fresh = [share if time is None else time for time in known]
        else:
            stretch = max(1.0, seconds / total) if total > 0 else 1.0
            fresh = [time * stretch for time in known if time is not None]
        for shape, time in zip(shapes, fresh, strict=True):
            self._set(shape, time)
        self.changes += 1
        self._forget()

    def _set(self, shape: Hashable, seconds: float) -> None:
        self._largest[shape] = max(seconds, self._largest.get(shape, 0.0))
        self._largest.move_to_end(shape)

    def _forget(self) -> None:
        while len(self._largest) > self._limit:
            self._largest.popitem(last=False)

    def pace(self, samples: int, seconds: float) -> None:
        """`samples` were finished in `seconds` of the service's time: a moving mean of seconds per sample."""
        each = seconds / samples
        self._pace = each if self._pace is None else self._pace + RATE_WEIGHT * (each - self._pace)

    @property
    def sample_s(self) -> float:
        """Seconds per sample at the recent pace; a guess before the first wave."""
        return DEFAULT_SAMPLE_S if self._pace is None else self._pace
