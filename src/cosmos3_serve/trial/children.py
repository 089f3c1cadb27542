"""Child processes of a command that must all be gone when it ends, however it ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from cosmos3_serve.errors import ExitCode, Interrupted, ServiceFailure

T = TypeVar("T")
COMMAND_STOP_S = 10.0
PR_SET_PDEATHSIG = 1
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Children(AbstractContextManager["Children"]):
    """Leaves in reverse order whatever was entered. SIGINT, SIGTERM and SIGHUP all end the block, but neither between a
    child's start and its registration nor during the clean-up: a second Ctrl-C would leave processes behind.

    Raises:
        Interrupted: on leaving, when a signal ended the block; all children have ended by then.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._holding = 0
        self._pending = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._on_signal) for number in ENDING}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._holding += 1
        try:
            self._stack.__exit__(kind, error, at)
        finally:
            for number, handler in self._before.items():
                signal.signal(number, handler)
        if self._pending or (kind is not None and issubclass(kind, KeyboardInterrupt)):
            raise Interrupted("stopped by a signal; everything that was started has ended", remedy="run it again")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._holding:
            self._pending = True
        else:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        self._holding += 1
        try:
            yield
        finally:
            self._holding -= 1
        if self._pending and not self._holding:
            raise KeyboardInterrupt

    def enter(self, child: AbstractContextManager[T]) -> T:
        with self._held():
            return self._stack.enter_context(child)

    def start(self, launch: Callable[[], object], stop: Callable[[], object]) -> None:
        """Launch something that is stopped on leaving."""
        with self._held():
            self._stack.callback(stop)
            launch()

    def run(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """Run one of our own commands to its end; its stderr is ours, its stdout is dropped.

        Raises:
            ServiceFailure: it failed; its own words stand above on stderr.
        """
        code = self.enter(OwnCommand(command, environ)).wait()
        if code == ExitCode.INTERRUPTED:
            raise KeyboardInterrupt
        if code != ExitCode.DONE:
            raise ServiceFailure(f"cosmos3 {command[0]} ended with exit code {code}")


class OwnCommand(AbstractContextManager["subprocess.Popen[bytes]"]):
    """`cosmos3 …` as a child in a process group of its own; on leaving it is interrupted, then killed."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._command, self._environ = [sys.executable, "-m", "cosmos3_serve.cli.main", *command], dict(environ)

    def __enter__(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            self._command,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent(signal.SIGINT),
        )
        return self._process

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        end(self._process, signal.SIGINT, COMMAND_STOP_S)


def end(process: subprocess.Popen[bytes], number: signal.Signals, timeout_s: float) -> None:
    """Signal a group leader, wait, and kill whatever is left of its group."""
    if process.poll() is None:
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def die_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """What a child runs before its program so that the kernel signals it when its parent dies (Linux only)."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)  # loaded here: between fork and exec nothing may allocate much

    def ask() -> None:
        libc.prctl(PR_SET_PDEATHSIG, int(number))

    return ask
