"""An engine that hangs is told from one that is idle, long at work, or full."""

from __future__ import annotations

import pytest

from cosmos3_serve.reasoner.engine.figures import EngineFigures
from cosmos3_serve.reasoner.engine.liveness import IDLE_S, QUIET_S, Liveness

HUNG_S = 60.0


class Engine:
    """Figures by hand, seen once a second."""

    def __init__(self) -> None:
        self.now, self.running, self.steps = 0.0, 0, 0
        self.alive = Liveness(HUNG_S, clock=lambda: self.now)
        self.asked_at: list[float] = []

    def passes(self, seconds: float, *, steps: int = 0, answers: bool = True) -> None:
        """`steps` a second; `answers`: a question for a token is answered at once."""
        until = self.now + seconds
        while self.now < until:
            self.now += 1
            self.steps += steps
            self.alive.see(EngineFigures(self.running, 0, (self.running, self.steps)))
            if self.alive.wants_token:
                self.asked_at.append(self.now)
                self.alive.asked()
                if answers:
                    self.alive.answered(token=True)


def test_an_idle_engine_is_asked_for_a_token_now_and_then_and_lives() -> None:
    engine = Engine()
    engine.passes(3600)
    assert not engine.alive.quiet and not engine.alive.hung
    assert engine.asked_at[1] - engine.asked_at[0] == pytest.approx(IDLE_S, abs=1.5)


def test_an_idle_engine_that_stopped_is_found_by_its_token() -> None:
    engine = Engine()
    engine.passes(IDLE_S + 1 + QUIET_S, answers=False)
    assert engine.alive.quiet and not engine.alive.hung
    engine.passes(HUNG_S - QUIET_S, answers=False)
    assert engine.alive.hung
    assert len(engine.asked_at) == 1, "one question at a time"


def test_a_busy_engine_that_stopped_needs_no_question() -> None:
    engine = Engine()
    engine.running = 3
    engine.passes(30, steps=5)
    engine.passes(QUIET_S + 1)
    assert engine.alive.quiet
    engine.passes(1, steps=1)
    assert not engine.alive.quiet, "it computes again"
    engine.passes(HUNG_S + 1)
    assert engine.alive.hung and engine.asked_at == []


def test_one_long_answer_is_no_hang() -> None:
    engine = Engine()
    engine.running = 1
    for _ in range(100):
        engine.passes(1, steps=1)
        engine.passes(QUIET_S - 2)
        assert not engine.alive.quiet


def test_time_without_work_does_not_count() -> None:
    engine = Engine()
    engine.alive.idle_s = float("inf")
    engine.passes(1000)
    engine.running = 1
    engine.passes(QUIET_S - 1)
    assert not engine.alive.quiet


def test_a_question_that_is_refused_proves_nothing() -> None:
    engine = Engine()
    engine.passes(IDLE_S + 1, answers=False)
    engine.alive.answered(token=False)
    engine.passes(1)
    assert engine.alive.silent_s() < QUIET_S
