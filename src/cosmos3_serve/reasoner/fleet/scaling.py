"""How large the fleet should be: the load over what one replica is meant to carry, steadied over time. Pure.

It grows by what was asked for throughout the last seconds, so that a burst that is over starts no engine; it shrinks to
the most that was asked for within `keep_s`. An empty fleet starts its first replica at once.
"""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from cosmos3_serve.reasoner.fleet.member import Demand
from cosmos3_serve.settings import ReasonerSettings, WorkerRange

GROW_AFTER_S = 5.0
SHARE = 0.75  # of the answers that a replica works on at once; the rest is for what comes while another one loads


def gateways_for(most: int, workers: WorkerRange, wanted: int) -> int:
    """Gateways for a fleet of `wanted` replicas: in proportion to them, at least one; `most` where it is fixed."""
    return most if not workers.scales else min(most, max(1, math.ceil(most * wanted / workers.most)))


def scaling_of(settings: ReasonerSettings) -> Mapping[str, Any]:
    """What `Sizing` is made with, as JSON."""
    return {"scale_load": settings.scale_load, "keep_s": settings.scale_down_after_s,
            "start_s": settings.start_timeout_s}  # fmt: skip


class Window:
    """The largest size of the last `keep_s` seconds, or the smallest; no more entries than there are sizes."""

    def __init__(self, keep_s: float, beats: Callable[[int, int], bool]) -> None:
        self._keep_s, self._beats = keep_s, beats
        self._sizes: deque[tuple[float, int]] = deque()  # the extreme first, then what replaces it as time passes

    def note(self, now: float, size: int) -> int:
        """The extreme, with this size."""
        while self._sizes and not self._beats(self._sizes[-1][1], size):
            self._sizes.pop()
        self._sizes.append((now, size))
        while now - self._sizes[0][0] > self._keep_s:
            self._sizes.popleft()
        return self._sizes[0][1]


class Sizing:
    """
    Args:
        scale_load: answers meant for each replica; None: `SHARE` of what one works on at once.
        keep_s: seconds for which a size is kept after it was last asked for.
        start_s: seconds that the first replica may take to load: an empty fleet that was woken waits so long for it.
    """

    def __init__(self, *, scale_load: int | None, keep_s: float, start_s: float) -> None:
        self._scale_load, self._start_s = scale_load, start_s
        self._most, self._least = Window(keep_s, operator.gt), Window(GROW_AFTER_S, operator.lt)
        self._begun = False
        self._woken_at: float | None = None
        self._seqs = 0

    def wanted(self, demand: Demand | None, target: int, serving: int, now: float, least: int, most: int) -> int:
        """
        Args:
            demand: None where nobody can tell it now: the fleet stays as it is.
            target: the size that was decided last; `serving`: replicas that are up.
            now: seconds, monotonic.
            least, most: the bounds of the size.
        """
        if not self._begun:  # whoever decided the size until now knew a load that this one has not seen
            self._begun = True
            self._note(now, target)
        if demand is None or not demand.settled:
            asked = target
        else:
            asked = min(max(self._asked(demand), least), most)
            self._woken_at = None if not target or serving else self._woken_at or now
            if self._woken_at is not None and now - self._woken_at < self._start_s:
                asked = max(asked, 1)  # whoever woke it comes back once it serves
        largest, smallest = self._note(now, asked)
        if not target:
            return asked
        if smallest > target:
            return smallest
        # Serve reaches none from one only.
        return target if largest >= target else max(largest, int(target > 1))

    def _note(self, now: float, size: int) -> tuple[int, int]:
        return self._most.note(now, size), self._least.note(now, size)

    def _asked(self, demand: Demand) -> int:
        self._seqs = demand.seqs or self._seqs
        each = self._scale_load or SHARE * self._seqs
        found = math.ceil(demand.answers / each) if each else min(demand.answers, 1)
        return max(found, int(demand.asked))
