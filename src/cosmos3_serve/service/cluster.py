"""RayCluster: a Ray cluster of our own that nobody else can use, or a place in one that exists.

An owned cluster lives and dies with this process. All of it listens on loopback (except Serve's port between replicas,
which binds every address and asks for Ray's token), its token is fresh, its files are private, and whatever it started
is ended by process id. `docs/operations.md` lists its ports; a test compares the list with the sockets.

Nothing here imports Ray before `start`: Ray reads its environment when it is imported.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import IO, Any

import structlog

from cosmos3_serve.errors import ServiceFailure, StartRefused
from cosmos3_serve.service import logs, reaper
from cosmos3_serve.service.memory import uncollected
from cosmos3_serve.service.ray_helpers import left_out

log = structlog.get_logger(__name__)

MIB = 1024 * 1024
PREFIX = "c3-"
OWNER = "owner"
# A Unix socket's path has at most 107 bytes, of which Ray's session and socket names take 64 and our directory 12.
MAX_BASE = 107 - 64 - 12
CONNECT_S = 5.0
CLAIMS = "cosmos3_claims"
TRIES = 3  # an own cluster is given
OBJECT_STORE_BYTES = 100 * MIB  # our messages are small and travel inline; this is about Ray's smallest

OWNED_ENV = {
    # Ray's name is historical: with 0 a node calls itself 127.0.0.1, on Linux too, and its servers bind loopback.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Fixed ports of Ray's own metrics (44217, 44227): two services on one machine would fight for them, where another
    # Ray starts the helpers that we leave out.
    "AUTOSCALER_METRIC_PORT": "0",
    "DASHBOARD_METRIC_PORT": "0",
    "RAY_ROTATION_MAX_BYTES": str(16 * MIB),
    "RAY_ROTATION_BACKUP_COUNT": "2",
}
# Serve's controller looks after its few replicas ten times a second, a third of what an idle service uses of the CPU.
CONTROL_LOOP_ENV, CONTROL_LOOP_S = "RAY_SERVE_CONTROL_LOOP_INTERVAL_S", "0.5"
# Serve may not open a port of its own for HTTP: the ingress replica owns the public one.
SERVE_ENV = {"RAY_SERVE_ENABLE_DIRECT_INGRESS": "0", "RAY_SERVE_ENABLE_HA_PROXY": "0", "RAY_SERVE_LOG_TO_STDERR": "0"}


class _Claim:
    """Holds a name; its process ends with that of the service."""


class RayCluster:
    """Start with `start()`, end with `stop()`; or use it as a context manager.

    Args:
        address: join this cluster; None owns one.
        environ: the environment to prepare; Ray and every process it starts read it.
        carry: variables for the workers of a cluster that is joined: they do not inherit ours.

    Raises:
        StartRefused: `RAY_AUTH_MODE` names another mode than `token`, or a cluster cannot be joined.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        environ: MutableMapping[str, str] | None = None,
        carry: Mapping[str, str] | None = None,
    ) -> None:
        self.address = address
        self._carry = dict(carry or {})
        self.owned = address is None
        self.claimed = False
        self.directory: Path | None = None
        self._environ = os.environ if environ is None else environ
        self._lock: IO[str] | None = None
        self._reaper: subprocess.Popen[bytes] | None = None
        self._foreign: list[reaper.Process] = []
        self._claim: Any = None  # an actor: it lives as long as we hold it
        mode = self._environ.get("RAY_AUTH_MODE")
        if mode not in (None, "", "token"):
            raise StartRefused(
                f"RAY_AUTH_MODE is {mode!r}", code="ray_auth_mode", remedy="leave it unset or set it to `token`"
            )

    def look(self) -> None:
        """What can be refused without Ray: no folder for its sockets, or nobody who listens at the address to join.

        Raises:
            StartRefused: with what to change.
        """
        if self.address is None:
            short_base()
        else:
            self._look_before_joining(self.address)

    def start(self) -> None:
        """Start or join. Raises StartRefused when joining fails, ServiceFailure when an own cluster does not start."""
        self._environ.update(SERVE_ENV)
        self._environ["RAY_AUTH_MODE"] = "token"
        options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        if self.owned:
            sweep()
            self._prepare()
            options |= {
                "address": "local",
                "include_dashboard": False,
                "num_cpus": max(2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0),
                "object_store_memory": OBJECT_STORE_BYTES,
                "_temp_dir": str(self.directory),
                # Ray starts workers at nice 15; ours are the service, and engines inherit it.
                "_system_config": {"enable_metrics_collection": False, "worker_niceness": 0},
            }
        else:
            options |= {"address": self.address}
            if self._carry:
                options["runtime_env"] = {"env_vars": self._carry}
            self.look()
        try:
            self._init(options)
        except BaseException as error:
            self.stop()
            if not isinstance(error, Exception):
                raise
            raise self._failed(error) from None
        self.record()

    def claim(self, name: str, *, remedy: str) -> None:
        """Be the only one of this name on the cluster, for as long as this process lives; `claimed` then says so.

        What a service that was killed left behind under its name may then be replaced.

        Raises:
            StartRefused: code `service_running`: another service has the name.
        """
        if not self.owned:
            import ray

            holder = ray.remote(_Claim).options(name=f"{name}-claim", namespace=CLAIMS, num_cpus=0, max_restarts=-1)
            try:
                self._claim = holder.remote()
            except ValueError:
                raise StartRefused(
                    f"another service runs as {name} on this cluster", code="service_running", remedy=remedy
                ) from None
        self.claimed = True

    def record(self) -> None:
        """Note which processes are ours now. Call it now and then: the reaper ends what was noted last."""
        if self.directory is not None and self._reaper is not None:
            with contextlib.suppress(OSError):
                reaper.record(self.directory, self._own_processes())

    def stop(self) -> None:
        """Leave the cluster; end an owned one and remove its files. May be called at any time, also twice."""
        mine = self._own_processes() if self.owned and self.directory is not None else []
        if "ray" in sys.modules:
            import ray

            with contextlib.suppress(Exception):
                if self._claim is not None:
                    ray.kill(self._claim, no_restart=True)  # now, and not when the cluster has noticed our end
                ray.shutdown()
        self._claim = None
        killed = reaper.end(mine)
        if killed:
            log.warning("ray_processes_killed", count=len(killed))
        if self._reaper is not None and self._reaper.stdin is not None:
            self._reaper.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._reaper.wait(5)
            self._reaper = None
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> RayCluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _look_before_joining(self, address: str) -> None:
        """Ray tries for minutes where nobody listens, and a loopback address would become that of the network card."""
        if address == "auto":
            return
        host, colon, port = address.rpartition(":")
        if "://" in address or not colon or not port.isdigit():
            raise StartRefused(
                f"{address!r} is not host:port of a Ray head", code="ray_unreachable", remedy="give host:port, or auto"
            )
        host = host.strip("[]")
        try:
            socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
        except OSError as error:
            raise self._failed(error) from None
        if host in ("127.0.0.1", "::1", "localhost"):
            self._environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"

    def _init(self, options: dict[str, Any]) -> None:
        with uncollected():
            import ray

        for left in reversed(range(TRIES if self.owned else 1)):
            try:
                with left_out() if self.owned else contextlib.nullcontext():
                    ray.init(**options)
                return
            except Exception as error:
                if not left:
                    raise
                # Ray gives a node half a minute to start, however busy the machine; the next time its files are warm.
                log.warning("ray_starts_again", exception=type(error).__name__)
                with contextlib.suppress(Exception):
                    ray.shutdown()
                reaper.end(self._own_processes())

    def _prepare(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=short_base()))
        self._lock = (self.directory / OWNER).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        token = self.directory / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_urlsafe(32))
        self._environ.update(OWNED_ENV)
        self._environ.setdefault(CONTROL_LOOP_ENV, CONTROL_LOOP_S)
        self._environ["RAY_AUTH_TOKEN_PATH"] = str(token)
        for name in ("RAY_AUTH_TOKEN", "RAY_ADDRESS"):
            self._environ.pop(name, None)
        home = Path(self._environ.get("HOME") or "/nonexistent")
        if not os.access(home, os.W_OK):
            (self.directory / "home").mkdir(mode=0o700)
            self._environ["HOME"] = str(self.directory / "home")
        if logs.stderr_path():
            self._environ[logs.TARGET_ENV] = logs.stderr_path()
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", reaper.__file__, str(self.directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._foreign = reaper.children(os.getpid())

    def _own_processes(self) -> list[reaper.Process]:
        """What Ray started here: the children that came since `start`, and everything below them."""
        own: list[reaper.Process] = []
        for child in reaper.children(os.getpid()):
            if child not in self._foreign:
                own += [child, *reaper.descendants(child[0])]
        return own

    def _failed(self, error: Exception) -> StartRefused | ServiceFailure:
        name = type(error).__name__
        if self.owned:
            return ServiceFailure(f"the Ray cluster did not start ({name})", code="ray_start_failed")
        return StartRefused(
            f"the Ray cluster at {self.address} cannot be joined ({name})",
            code="ray_unreachable",
            remedy="check the address, that the cluster runs the same Ray and Python, that it demands a token "
            "(RAY_AUTH_MODE=token) and that RAY_AUTH_TOKEN_PATH names the file that holds it",
        )


def short_base() -> Path:
    """A directory for sockets whose path is short enough. Raises StartRefused when there is none."""
    for candidate in (tempfile.gettempdir(), "/tmp", "/dev/shm"):
        if len(candidate.encode()) <= MAX_BASE and os.access(candidate, os.W_OK):
            return Path(candidate)
    raise StartRefused(
        f"no writable directory for Ray's sockets has a path of at most {MAX_BASE} characters",
        code="temp_dir",
        remedy="make /tmp writable, or set TMPDIR to a short path",
    )


def sweep(base: Path | None = None) -> int:
    """Clear away what killed services left behind: a directory whose owner's lock is free has no owner any more."""
    removed = 0
    for directory in (base or short_base()).glob(PREFIX + "*"):
        with contextlib.suppress(OSError):
            if directory.stat().st_uid != os.getuid():
                continue
            with (directory / OWNER).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                reaper.end(reaper.recorded(directory))
                shutil.rmtree(directory, ignore_errors=True)
                removed += 1
    return removed
