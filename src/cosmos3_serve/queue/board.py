"""Where every part stands, in memory: what may be taken next, and the figures that people see."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from cosmos3_serve.queue.records import PartResult, PartStatus, Plan, PlannedPart

RATE_OVER_S = 600.0


@dataclass(frozen=True, slots=True)
class Figures:
    """Exact counts; `rate` in samples a second over the last ten minutes of this worker, 0 before the first."""

    parts: int
    parts_ended: int
    parts_running: int
    parts_failed: int
    samples: int
    samples_ended: int
    samples_running: int
    samples_failed: int
    rate: float

    @property
    def eta_s(self) -> float | None:
        left = self.samples - self.samples_ended - self.samples_running
        return left / self.rate if self.rate > 0 else None


@dataclass
class Board:
    plan: Plan
    clock: Callable[[], float] = time.monotonic
    results: dict[str, PartResult] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)  # part -> samples that ended in its attempt
    attempts: dict[str, int] = field(default_factory=dict)  # counted
    partial: set[str] = field(default_factory=set)  # to be published as they are
    known: set[str] = field(default_factory=set)  # of which something may have been left
    endpoint: dict[str, str] = field(default_factory=dict)  # where a part was sent last
    _not_before: dict[str, float] = field(default_factory=dict)
    _history: deque[tuple[float, int]] = field(default_factory=deque)
    _ended: int = 0
    _failed: int = 0

    def __post_init__(self) -> None:
        self._parts = {part.name: part for part in self.plan.parts}
        self._waiting = dict.fromkeys(self._parts)  # an ordered set

    @property
    def all_ended(self) -> bool:
        return len(self.results) == len(self._parts)

    def part(self, name: str) -> PlannedPart:
        return self._parts[name]

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Those of this queue that have no result here."""
        return [name for name in names if name in self._parts and name not in self.results]

    def start_at(self, position: int) -> None:
        """Take parts from this one on, so that workers that start together do not all want the same."""
        names = list(self._waiting)
        self._waiting = dict.fromkeys(names[position:] + names[:position])

    def takeable(self) -> Iterator[PlannedPart]:
        """Parts that may be tried now, in order."""
        now = self.clock()
        for name in list(self._waiting):
            if self._not_before.get(name, 0.0) <= now and name in self._waiting:
                yield self._parts[name]

    def begin(self, name: str) -> None:
        self._waiting.pop(name, None)
        self.running[name] = 0

    def back(self, name: str, wait_s: float) -> None:
        """The attempt ended, or the part was another worker's; not before so many seconds again."""
        self.running.pop(name, None)
        if name not in self.results:
            self._not_before[name] = self.clock() + wait_s
            self._waiting[name] = None

    def ended(self, result: PartResult) -> None:
        if result.name in self.results or result.name not in self._parts:
            return
        self.running.pop(result.name, None)
        self._waiting.pop(result.name, None)
        self._not_before.pop(result.name, None)
        self.results[result.name] = result
        self._ended += result.samples
        self._failed += result.samples - result.succeeded

    def figures(self) -> Figures:
        running = sum(self.running.values())
        now, ended = self.clock(), self._ended + running
        self._history.append((now, ended))
        while len(self._history) > 2 and self._history[0][0] < now - RATE_OVER_S:
            self._history.popleft()
        began, before = self._history[0]
        return Figures(
            parts=len(self._parts),
            parts_ended=len(self.results),
            parts_running=len(self.running),
            parts_failed=sum(result.status is PartStatus.FAILED for result in self.results.values()),
            samples=self.plan.samples,
            samples_ended=self._ended,
            samples_running=running,
            samples_failed=self._failed,
            rate=max(0.0, (ended - before) / (now - began)) if now > began else 0.0,
        )
