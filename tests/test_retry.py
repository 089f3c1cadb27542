"""The policy of retries: how long is waited, and when no more."""

from __future__ import annotations

from cosmos3_serve.retry import Attempts, RetryPolicy


def test_waits_grow_to_a_cap_and_are_drawn_from_zero_up() -> None:
    policy = RetryPolicy(base_s=0.1, cap_s=1.0)
    assert [policy.wait_s(n, lambda: 1.0) for n in (1, 2, 3, 4, 5, 50, 5000)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    assert policy.wait_s(3, lambda: 0.0) == 0.0
    assert len({policy.wait_s(3) for _ in range(20)}) > 1


def test_what_the_server_asks_for_is_never_undercut() -> None:
    attempts = Attempts(RetryPolicy(attempts=5, base_s=1, cap_s=1), draw=lambda: 0.5)
    assert [attempts.wait_s(7), attempts.wait_s(0.1), attempts.wait_s()] == [7, 0.5, 0.5]


def test_tries_and_time_are_bounded_and_progress_starts_anew() -> None:
    now = [0.0]
    policy = RetryPolicy(attempts=3, base_s=1, cap_s=1, deadline_s=10)
    attempts = Attempts(policy, draw=lambda: 1.0, clock=lambda: now[0])
    assert [attempts.wait_s(), attempts.wait_s(), attempts.wait_s()] == [1, 1, None]
    attempts.progressed()
    assert attempts.wait_s() == 1
    assert attempts.wait_s(10) is None, "a wait past the deadline is not begun"
    attempts.progressed()
    now[0] = 9.5
    assert attempts.wait_s() is None
