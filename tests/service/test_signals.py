"""Signals: first an orderly end, then an end."""

import os
import signal

import pytest

from cosmos3_serve.service.signals import Stop, StopSignals


def send(number: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def test_before_anything_waits_a_signal_ends_at_once_and_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stop) as stopped, StopSignals():
        send()
        pytest.fail("not reached")
    assert not stopped.value.again
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_once_waiting_the_first_only_ends_the_wait_and_the_second_raises(number: signal.Signals) -> None:
    with StopSignals() as stop:
        assert not stop.wait(0.001)
        send(number)
        assert stop.wait(10)
        with pytest.raises(Stop) as stopped:
            send(number)
        assert stopped.value.again


def test_the_clean_up_is_not_interrupted() -> None:
    with StopSignals() as stop:
        stop.ignore()
        send()
        send(signal.SIGINT)


def test_handlers_that_a_library_put_in_between_are_replaced() -> None:
    with StopSignals() as stop:
        stop.wait(0.001)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        stop.install()
        send()
        assert stop.wait(10)


def test_sigusr1_asks_for_a_renewal_and_ends_nothing() -> None:
    before, asked = signal.getsignal(signal.SIGUSR1), []
    with StopSignals() as stop:
        send(signal.SIGUSR1)  # nobody wants to know yet
        stop.on_renew(lambda: asked.append(1))
        send(signal.SIGUSR1)
        assert not stop.wait(0.001)
        stop.ignore()
        send(signal.SIGUSR1)
    assert asked == [1], "a service that ends renews nothing"
    assert signal.getsignal(signal.SIGUSR1) is before
