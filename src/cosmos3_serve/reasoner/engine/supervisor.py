"""Supervisor: a small process between a replica and its engine: nothing of the engine outlives either.

Run as a script (standard library only, nothing of the package imported). It starts the engine in a process group of
its own, keeps the engine's output in a bounded log, and ends it when told, or when the pipe to the replica closes,
however the replica died. It is the reaper of the engine's orphans: a worker whose parent was killed becomes a child of
the supervisor and is ended with the rest. If the supervisor itself is killed, the kernel kills the engine.

In: one JSON line (command, env, directory, log, log_bytes, grace_s), then nothing but the end of the file.
Out: JSON lines: {"pid": …}, then {"exit": code}. The directory is removed at the very end.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # ends with the replica, not with the replica's terminal
TICK_S = 0.2
CHUNK = 65_536


class BoundedLog:
    """At most twice `limit` bytes on disk: the current file and the one before it."""

    def __init__(self, path: Path, limit: int) -> None:
        self._path, self._limit = path, limit
        self._file = path.open("wb", buffering=0)
        self._size = 0

    def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # a full disk must not stop the engine
            if self._size + len(data) > self._limit:
                self._file.close()
                self._path.replace(self._path.with_suffix(".old"))
                self._file = self._path.open("wb", buffering=0)
                self._size = 0
            self._file.write(data)
            self._size += len(data)


def say(**line: object) -> None:
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(line).encode() + b"\n")


def read_order() -> dict[str, Any]:
    said = b""
    while not said.endswith(b"\n"):
        chunk = os.read(0, CHUNK)
        if not chunk:
            sys.exit(1)
        said += chunk
    order: dict[str, Any] = json.loads(said)
    return order


def start(command: list[str], env: Mapping[str, str], directory: str) -> subprocess.Popen[bytes]:
    libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    if libc is not None:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1)

    def die_with_us() -> None:
        # What we ignore would stay ignored there: an engine that still loads would not end when told.
        for number in IGNORED:
            signal.signal(number, signal.SIG_DFL)
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))

    return subprocess.Popen(
        command,
        env=dict(env),
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=die_with_us,
    )


def orphans() -> list[int]:
    """Our children: the engine and whatever it left behind."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError, UnicodeDecodeError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(entry.name))
    return found


def end_group(engine: subprocess.Popen[bytes]) -> None:
    """Kill the engine's group and every orphan, generation by generation, until none is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(engine.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        for pid in orphans():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.02)


def watch(engine: subprocess.Popen[bytes], log: BoundedLog, grace_s: float) -> int:
    """Until the engine has ended, by itself or because we were told to end it. Its exit code."""
    assert engine.stdout is not None
    output = engine.stdout.fileno()
    listening, deadline = [0, output], None
    while engine.poll() is None:
        if deadline is not None and time.monotonic() >= deadline:
            with contextlib.suppress(ProcessLookupError):
                engine.kill()
        for ready in select.select(listening, [], [], TICK_S)[0]:
            chunk = os.read(ready, CHUNK)
            if ready == output and chunk:
                log.write(chunk)
            elif ready == output:
                listening.remove(output)
            elif not chunk:
                listening.remove(0)
                engine.terminate()
                deadline = time.monotonic() + grace_s
    while select.select([output], [], [], 0)[0] and (rest := os.read(output, CHUNK)):
        log.write(rest)
    return engine.returncode


def main() -> None:
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    order = read_order()
    directory = Path(order["directory"])
    try:
        try:
            log = BoundedLog(Path(order["log"]), int(order["log_bytes"]))
            engine = start(order["command"], order["env"], order["directory"])
        except OSError as error:
            say(exit=127, error=error.strerror)
        else:
            say(pid=engine.pid)
            code = watch(engine, log, float(order["grace_s"]))
            end_group(engine)
            say(exit=code)
        with contextlib.suppress(OSError):
            while os.read(0, CHUNK):  # the replica may still want to read the log
                pass
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
