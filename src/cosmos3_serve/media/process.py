"""MediaReader: `read_media` in confined processes, for threads that may wait. Processes start when first needed and are
replaced when they die, hang or grow old."""

from __future__ import annotations

import json
import mmap
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cosmos3_serve.errors import ServiceFailure
from cosmos3_serve.media.confine import environ
from cosmos3_serve.media.limits import ReadLimits
from cosmos3_serve.media.read import Media, NoRoom, Want
from cosmos3_serve.media.record import MediaRecord
from cosmos3_serve.media.refusal import COMMAND, broken

MODULE = "cosmos3_serve.media.worker"
JOBS_PER_PROCESS = 200  # decoders leak
START_S = 60.0
LOOK_S = 0.25  # between two looks whether the read was cancelled


class ReadCancelled(Exception):
    """Nobody wants the frames any more; no verdict on the file."""


class MediaReader:
    """
    Args:
        limits: of each read.
        processes: that may read at once.
        module: the worker, for tests of dying and hanging ones.
    """

    def __init__(self, limits: ReadLimits | None = None, *, processes: int = 2, module: str = MODULE) -> None:
        self.limits = limits or ReadLimits()
        self._module = module
        self._places = threading.BoundedSemaphore(processes)
        self._lock = threading.Lock()
        self._free: list[_Process] = []
        self._busy: set[_Process] = set()
        self._closed = False

    def read(self, path: Path, want: Want, cancelled: Callable[[], bool] = lambda: False) -> Media:
        """Blocks until the file is read, at most `limits.timeout_s`.

        Raises:
            Refused: as `read_media`; also when the process dies of the file or runs out of time.
            NoRoom: as `read_media`.
            ReadCancelled: `cancelled` said so, or the reader was closed.
            ServiceFailure: code `media_reader_failed`: no process can be started, or our disk fails.
        """
        with self._places:
            process = self._take()
            try:
                answer, descriptor = process.ask(path, want, cancelled)
            except BaseException:
                self._drop(process)
                raise
            self._give(process)
        if "refused" in answer:
            from cosmos3_serve.media.refusal import Refused

            raise Refused(**answer["refused"])
        if "no_room" in answer:
            raise NoRoom
        if "fault" in answer:
            raise _failure(f"the stored media cannot be read: {answer['fault']}")
        return _media(answer, descriptor)

    def close(self) -> None:
        """End every process; reads that wait for one are cancelled."""
        with self._lock:
            self._closed = True
            free, busy = list(self._free), list(self._busy)
            self._free.clear()
        for process in busy:
            process.stop()
        for process in free:
            process.close()

    def _take(self) -> _Process:
        with self._lock:
            if self._closed:
                raise ReadCancelled
            process = self._free.pop() if self._free else _Process(self._module, self.limits)
            self._busy.add(process)
            return process

    def _give(self, process: _Process) -> None:
        with self._lock:
            self._busy.discard(process)
            if not self._closed and process.jobs < JOBS_PER_PROCESS:
                self._free.append(process)
                return
        process.close()

    def _drop(self, process: _Process) -> None:
        with self._lock:
            self._busy.discard(process)
        process.close()


class _Process:
    """One worker process, for one job at a time."""

    def __init__(self, module: str, limits: ReadLimits) -> None:
        self._module, self._limits = module, limits
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._stopped = False
        self.jobs = 0

    def ask(self, path: Path, want: Want, cancelled: Callable[[], bool]) -> tuple[dict[str, Any], int | None]:
        channel = self._channel or self._start(cancelled)
        self.jobs += 1
        until = time.monotonic() + self._limits.timeout_s
        try:
            channel.sendall(json.dumps({"path": str(path), "want": asdict(want)}).encode() + b"\n")
            return self._receive(channel, until, cancelled)
        except TimeoutError:
            limit = self._limits.timeout_s
            raise broken("media_too_slow", f"the file was not decoded within {limit:g} s", COMMAND) from None
        except (OSError, ValueError, EOFError):
            if self._stopped:
                raise ReadCancelled from None
            raise broken("media_kills_decoder", "a decoder died of the file", COMMAND) from None

    def _start(self, cancelled: Callable[[], bool]) -> socket.socket:
        ours, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, str(theirs.fileno()), json.dumps(self._limits.as_dict())],
                pass_fds=(theirs.fileno(),),
                env=environ(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C of the terminal is its parent's business
            )
            theirs.close()
            ready, _ = self._receive(ours, time.monotonic() + START_S, cancelled)
            if "ready" not in ready:
                raise ValueError("another greeting")
        except (OSError, ValueError, EOFError) as error:  # TimeoutError is an OSError
            ours.close()
            theirs.close()
            if self._stopped:
                raise ReadCancelled from None
            reason = str(error) or type(error).__name__
            raise _failure(f"no process for media can be started ({reason}): is `av` installed?") from None
        self._channel = ours
        return ours

    @staticmethod
    def _receive(
        channel: socket.socket, until: float, cancelled: Callable[[], bool]
    ) -> tuple[dict[str, Any], int | None]:
        """One line, and the descriptor that came with it."""
        data, descriptors = b"", []
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(channel, selectors.EVENT_READ)
                while not data.endswith(b"\n"):
                    left = until - time.monotonic()
                    if left <= 0:
                        raise TimeoutError
                    if cancelled():
                        raise ReadCancelled
                    if not selector.select(min(left, LOOK_S)):
                        continue
                    more, found, _, _ = socket.recv_fds(channel, 1 << 20, 1)
                    descriptors += found
                    if not more:
                        raise EOFError
                    data += more
            answer: dict[str, Any] = json.loads(data)
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return answer, descriptors[0] if descriptors else None

    def stop(self) -> None:
        """Kill it and wait for its end."""
        self._stopped = True
        channel, process = self._channel, self._process
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
        if channel is not None:
            with suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it, which closing would not

    def close(self) -> None:
        """`stop`, by the thread that asked last: nobody waits for the socket any more."""
        self.stop()
        if self._channel is not None:
            self._channel.close()


def _media(answer: dict[str, Any], descriptor: int | None) -> Media:
    import numpy as np

    if descriptor is None:
        raise _failure("the process for media answered without frames")
    try:
        frames = np.frombuffer(mmap.mmap(descriptor, 0), dtype=np.uint8).reshape(answer["shape"])
    finally:
        os.close(descriptor)
    return Media(frames, tuple(answer["times_s"]), answer["fps"], MediaRecord.from_dict(answer["record"]))


def _failure(words: str) -> ServiceFailure:
    return ServiceFailure(words, code="media_reader_failed", remedy="see the disk and the service's log")
