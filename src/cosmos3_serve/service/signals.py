"""StopSignals: the first SIGTERM or SIGINT asks for an orderly end, a second one for an end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

NUMBERS = (signal.SIGTERM, signal.SIGINT)


class Stop(BaseException):
    """Ends what the main thread does. `again`: it was asked for twice."""

    def __init__(self, *, again: bool) -> None:
        super().__init__("stopped by a signal")
        self.again = again


class StopSignals:
    """As a context manager it takes over both signals in the main thread and gives them back on leaving.

    Before the first `wait` there is nothing to end in order, so a signal raises `Stop` at once. Once waiting began, the
    first signal only ends the wait, and a second one raises. After `ignore` none does anything: the clean-up is bounded
    and must not be left half done.

    SIGUSR1 asks for a renewal where the service knows how (`on_renew`); else it is ignored, and never ends anything.
    """

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._waiting = False
        self._ignored = False
        self._before: dict[signal.Signals, Any] = {}
        self._renew: Callable[[], None] = lambda: None

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.getsignal(number) for number in (*NUMBERS, signal.SIGUSR1)}
            self.install()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def install(self) -> None:
        """Take the signals over (again: libraries install handlers of their own)."""
        if self._before:
            for number in NUMBERS:
                signal.signal(number, self._handle)
            signal.signal(signal.SIGUSR1, lambda _number, _frame: None if self._ignored else self._renew())

    def on_renew(self, call: Callable[[], None]) -> None:
        """What SIGUSR1 does from now on: called between two instructions of the main thread, it only takes a note."""
        self._renew = call

    def wait(self, seconds: float) -> bool:
        """Sleep, or return True once a signal came."""
        self._waiting = True
        return self._asked.wait(seconds)

    def ignore(self) -> None:
        self._ignored = True

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        first = not self._asked.is_set()
        self._asked.set()
        if not self._ignored and not (first and self._waiting):
            raise Stop(again=not first)
