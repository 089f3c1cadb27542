"""The generator service as a child process: started, waited for, and ended together with all that it started."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cosmos3_serve.cli.children import die_with_parent, end
from cosmos3_serve.errors import ExitCode, ServiceFailure, StartRefused

STOP_TIMEOUT_S = 25.0
LOG_LINES_SHOWN = 12


class ServiceProcess:
    """`cosmos3 ray-serve --json` in its own process group; `ready` is the line that it prints once it serves.

    Args:
        flags: command line after `ray-serve`.
        environ: complete environment of the child.
        log: file that takes the child's stderr.
    """

    def __init__(
        self, flags: Sequence[str], environ: Mapping[str, str], log: Path, *, timeout_s: float = 240.0
    ) -> None:
        self._command = [sys.executable, "-m", "cosmos3_serve.cli.main", "ray-serve", *flags, "--json"]
        self._environ, self._log, self._timeout_s = dict(environ), log, timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self.ready: dict[str, Any] = {}

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def launch(self) -> Self:
        """Start the child; it warms up while the caller does other things."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # a Ctrl-C at the terminal is ours to pass on, in our order
                preexec_fn=die_with_parent(signal.SIGTERM),
            )
        return self

    def wait_ready(self) -> dict[str, Any]:
        """Block until the child says that it is ready.

        Raises:
            StartRefused: it said no, in its own words.
            ServiceFailure: it ended, or took longer than `timeout_s`; the log's end is quoted.
        """
        assert self._process and self._process.stdout
        deadline, said = time.monotonic() + self._timeout_s, b""
        descriptor = self._process.stdout.fileno()
        while time.monotonic() < deadline:
            if not select.select([descriptor], [], [], 0.5)[0]:
                continue
            chunk = os.read(descriptor, 65536)
            said += chunk
            with contextlib.suppress(ValueError):
                self.ready = json.loads(said)
                break
            if not chunk:
                break
        if self.ready.get("exit_code") is not None or not self.ready:
            raise self._failure()
        return self.ready

    def _failure(self) -> ServiceFailure | StartRefused:
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:])
        if self.ready:
            kind = StartRefused if self.ready["exit_code"] == ExitCode.REFUSED else ServiceFailure
            said = {name: str(self.ready.get(name, "")) for name in ("detail", "code", "remedy")}
            return kind(said["detail"], code=said["code"], remedy=said["remedy"])
        return ServiceFailure(
            "the generator service did not become ready", remedy=f"see {self._log}; its last lines:\n{tail}"
        )

    def stop(self) -> None:
        """SIGTERM and wait for the drain; whatever is left of the group afterwards is killed."""
        process, self._process = self._process, None
        if process is None:
            return
        end(process, signal.SIGTERM, STOP_TIMEOUT_S)
        if process.stdout:
            process.stdout.close()

    def __enter__(self) -> Self:
        return self.launch()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
