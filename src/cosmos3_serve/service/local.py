"""LocalService: a real service in a process of its own, for tests and trials; and how it says that it is ready."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from cosmos3_serve.errors import ServiceFailure

READY_FILE_ENV = "COSMOS3_READY_FILE"
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
PR_SET_PDEATHSIG = 1


def write_ready_file(ready: Mapping[str, Any]) -> None:
    """Where the environment names a file: tell whoever started us that the service is ready, and where."""
    name = os.environ.get(READY_FILE_ENV)
    if name:
        path = Path(name)
        temporary = path.with_name(path.name + ".new")
        temporary.write_text(json.dumps(dict(ready)))
        temporary.replace(path)


class LocalService:
    """Starts the service on a free loopback port and waits until it is ready; `with` and `async with` both work.

    The child ends when this process dies. Its log is `<cache_dir>/<kind>-<n>.log`.

    Args:
        settings_env: environment variables over `defaults` and our own.

    Raises:
        ServiceFailure: on entering, when the service ends or is not ready in time; quotes the end of its log.
    """

    kind: ClassVar[str]
    module: ClassVar[str]
    token_env: ClassVar[str]
    timeout_s: ClassVar[float] = START_TIMEOUT_S

    def __init__(
        self, settings_env: Mapping[str, str], cache_dir: Path, *, start_timeout_s: float | None = None
    ) -> None:
        name = secrets.token_hex(4)
        self._timeout_s = self.timeout_s if start_timeout_s is None else start_timeout_s
        self._ready_file = cache_dir / f"{self.kind}-{name}.ready.json"
        self.log_path = cache_dir / f"{self.kind}-{name}.log"
        defaults = {
            self.token_env: secrets.token_urlsafe(24),
            "COSMOS3_CACHE_DIR": str(cache_dir),
            **self.defaults(cache_dir, name),
        }
        self.environ = {**os.environ, **defaults, **settings_env, READY_FILE_ENV: str(self._ready_file)}
        self.ready: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def defaults(self, cache_dir: Path, name: str) -> dict[str, str]:
        """Environment variables of the service's settings; `name` is unlike that of any other instance."""
        return {}

    def command(self) -> list[str]:
        """What is run; it must write the ready file."""
        return [sys.executable, "-m", self.module]

    @property
    def url(self) -> str:
        return str(self.ready["endpoint"])

    @property
    def token(self) -> str:
        return self.environ[self.token_env]

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    @property
    def exit_code(self) -> int | None:
        return self._process.poll() if self._process else None

    def launch(self) -> Self:
        """Start the process and return at once. Raises ServiceFailure if it runs already."""
        if self._process is not None and self._process.poll() is None:
            raise ServiceFailure(f"the local {self.kind} runs already")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._ready_file.unlink(missing_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C at the terminal is the starter's, who then ends us in order
                preexec_fn=_end_with_parent(),
            )
        return self

    def wait_ready(self) -> Self:
        """Block until /ready is 200. Raises ServiceFailure."""
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, ValueError):
                self.ready = json.loads(self._ready_file.read_text())
                return self
            if self._process is None or self._process.poll() is not None:
                break
            time.sleep(0.1)
        state = f"ended with {self.exit_code}" if self.exit_code is not None else "is not ready in time"
        self.stop()
        raise ServiceFailure(f"the local {self.kind} {state}; its log ends with:\n{self.log_tail()}")

    def terminate(self) -> None:
        """Ask it to drain and end; returns at once."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, as a crash would; its helpers end by themselves."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Exit code, once it has ended. Raises subprocess.TimeoutExpired."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def stop(self) -> None:
        """Drain and end it; after a minute kill it."""
        if self._process is None or self._process.poll() is not None:
            return
        self.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def log_tail(self, lines: int = 20) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])
        return ""

    def __enter__(self) -> Self:
        return self.launch().wait_ready()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        # Started here, waited for elsewhere: the child's fate is tied to the thread that starts it.
        self.launch()
        return await asyncio.to_thread(self.wait_ready)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)


def _end_with_parent() -> Callable[[], None] | None:
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
