"""A client process on a bad machine: it dies at the n-th change on its disk, its disk is full, its clock jumps.

`start` runs `submit_batch` in a process of its own, as `client_process` does; whatever ends it comes back by name, also
an exception that no caller should ever see.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from support.client_process import CONTEXT

CHANGES = {"os.rename": 2, "os.link": 2, "os.remove": 1, "os.mkdir": 1, "os.rmdir": 1, "os.truncate": 1}


@dataclass(frozen=True, slots=True)
class LocalFaults:
    """What is wrong with the machine, below one folder.

    Attributes:
        die_at: SIGKILL before the n-th change of a file or folder (from 1; 0: never).
        disk_bytes: so many bytes may be written, then the disk is full; -1: no limit.
        clock_s: the wall clock jumps by so much when the client starts.
        real_decoder: decode in processes of its own, as ever; else in the client's, which saves an interpreter's start.
    """

    die_at: int = 0
    disk_bytes: int = -1
    clock_s: float = 0.0
    real_decoder: bool = False


def start(
    options: dict[str, Any], environ: dict[str, str], result: Path, below: Path, faults: LocalFaults
) -> ForkServerProcess:
    """Begin; `result` gets `manifest`, or `code`, `detail` and `exit_code`, or `crash`, and always `changes`."""
    process = CONTEXT.Process(
        target=_main, args=(options, environ, str(result), str(below), asdict(faults)), daemon=True
    )
    process.start()
    return process


def _main(options: dict[str, Any], environ: dict[str, str], result: str, below: str, faults: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(environ)
    from cosmos3_serve.client.submit import submit_batch
    from cosmos3_serve.errors import Cosmos3Error

    bad = LocalFaults(**faults)
    _hurry()
    if not bad.real_decoder:
        _decode_here()
    machine = _Machine(below, bad)
    try:
        with machine.broken():
            found: dict[str, Any] = {"manifest": submit_batch(**options)}
    except Cosmos3Error as error:
        found = {"code": error.stable_code, "detail": error.detail, "exit_code": error.exit_code}
    except BaseException:
        found = {"crash": traceback.format_exc()}
    found["changes"] = machine.changes
    path = Path(result)
    path.with_suffix(".tmp").write_text(json.dumps(found))
    path.with_suffix(".tmp").rename(path)


class _Machine:
    def __init__(self, below: str, faults: LocalFaults) -> None:
        self.below, self.faults, self.changes = below, faults, 0
        self.free = faults.disk_bytes
        self.on = False

    @contextlib.contextmanager
    def broken(self) -> Iterator[None]:
        sys.addaudithook(self._hook)  # it stays for the life of the process
        write, now = os.write, time.time

        def limited(handle: int, data: Any) -> int:
            if self.faults.disk_bytes < 0 or not self._on_disk(handle):
                return write(handle, data)
            if self.free <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            done = write(handle, memoryview(data)[: self.free])
            self.free -= done
            return done

        os.write, time.time, self.on = limited, lambda: now() + self.faults.clock_s, True
        try:
            yield
        finally:
            os.write, time.time, self.on = write, now, False

    def _on_disk(self, handle: int) -> bool:
        try:
            return str(Path(f"/proc/self/fd/{handle}").readlink()).startswith(self.below)
        except OSError:
            return False

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            path, flags = args[0], args[2]
            if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
            paths, makes = [path], bool(flags & os.O_CREAT)
        elif event in CHANGES:
            paths, makes = list(args[: CHANGES[event]]), event in ("os.mkdir", "os.link")
        else:
            return
        if not any(isinstance(path, str | Path) and str(path).startswith(self.below) for path in paths):
            return
        self.changes += 1
        if self.changes == self.faults.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if makes and self.free == 0 and self.faults.disk_bytes >= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _hurry() -> None:
    """Shorter waits: what is waited for is on this machine."""
    from cosmos3_serve.client import follow, rerun, submission
    from cosmos3_serve.retry import RetryPolicy

    for module, name, value in (
        (follow, "POLL_S", (0.02, 0.1)),
        (submission, "LOOK_AGAIN_S", 0.05),
        (submission, "WAIT_FOR_OTHER_S", 1.0),
        (rerun, "RERUN_WAIT_S", 0.05),
    ):
        if hasattr(module, name):
            setattr(module, name, value)
    wait_s = RetryPolicy.wait_s
    RetryPolicy.wait_s = lambda self, *args: wait_s(self, *args) / 8  # type: ignore[method-assign]


def _decode_here() -> None:
    from cosmos3_serve.contract.provenance import MediaProof
    from cosmos3_serve.publication import media_probe
    from cosmos3_serve.publication.decode import Decoder, _invalid

    async def check(self: Decoder, path: Path, expect: media_probe.Expectation, *, name: str) -> MediaProof:
        try:
            return MediaProof(path=name, **media_probe.probe(path, expect))
        except media_probe.Wrong as error:
            raise _invalid(name, str(error)) from None

    Decoder.check = check  # type: ignore[method-assign]
