"""Liveness: whether an engine still computes, from its own counters.

vLLM's /health answers as long as its server does, also while the engine core behind it hangs. Its counters of tokens
and its scheduler's figures move with every step: an engine that has work and whose figures rest computes nothing.
An engine without work is asked for one token from time to time: its core may have stopped before it heard of the work.
Loading is not watched: the first figures are those of an engine that answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cosmos3_serve.reasoner.engine.figures import EngineFigures

QUIET_S = 10.0  # no step for so long, with work to do: new sessions go elsewhere
IDLE_S = 15.0  # without work: then a token is asked for


@dataclass
class Liveness:
    """
    Args:
        hung_s: seconds without a step, with work to do, after which the engine counts as hung.
    """

    hung_s: float
    clock: Callable[[], float] = time.monotonic
    quiet_s: float = QUIET_S
    idle_s: float = IDLE_S
    _progress: tuple[float, ...] = ()
    _moved_at: float = field(init=False)
    _works_since: float | None = None  # None: nothing to do
    _busy: bool = False
    _asked: bool = False  # a token of ours is awaited

    def __post_init__(self) -> None:
        self._moved_at = self.clock()

    def see(self, figures: EngineFigures) -> None:
        """What the engine says of itself now."""
        if figures.progress != self._progress:
            self._progress, self._moved_at = figures.progress, self.clock()
        self._busy = figures.running + figures.waiting > 0
        self._account()

    @property
    def wants_token(self) -> bool:
        """Whether it is time to ask for one; `asked` and `answered` must follow."""
        return self._works_since is None and self.clock() - self._moved_at >= self.idle_s

    def asked(self) -> None:
        self._asked = True
        self._account()

    def answered(self, token: bool) -> None:
        """The question for a token has ended. Without one it proves nothing: other checks tell why."""
        self._asked = False
        if token:
            self._moved_at = self.clock()
        self._account()

    def silent_s(self) -> float:
        """Seconds in which nothing was computed although there was work; 0 without work."""
        if self._works_since is None:
            return 0.0
        return self.clock() - max(self._moved_at, self._works_since)

    @property
    def quiet(self) -> bool:
        return self.silent_s() >= self.quiet_s

    @property
    def hung(self) -> bool:
        return self.silent_s() >= self.hung_s

    def _account(self) -> None:
        if not (self._busy or self._asked):
            self._works_since = None
        elif self._works_since is None:
            self._works_since = self.clock()
