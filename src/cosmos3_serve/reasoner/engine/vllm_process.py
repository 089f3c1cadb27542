"""VllmProcess: a real vLLM server as a child of a replica: started, waited for, asked how it is, and ended whole."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import structlog

from cosmos3_serve.errors import EngineFailed, ServiceFailure
from cosmos3_serve.reasoner.engine import launch, secret, supervisor
from cosmos3_serve.reasoner.engine.figures import EngineFigures, parse_figures
from cosmos3_serve.reasoner.engine.start_failure import start_failure
from cosmos3_serve.reasoner.setup import SECRET_HEADER
from cosmos3_serve.reasoner.tls import identity_of, pinned
from cosmos3_serve.service.http_server import listening_socket

log = structlog.get_logger(__name__)

MODULE = "vllm.entrypoints.openai.api_server"
MIDDLEWARE, LAUNCHER = "cosmos3_replica_secret", "cosmos3_engine"
PREFIX = "c3v-"
KEY, CERTIFICATE = "tls-key.pem", "tls-certificate.pem"
LOG_BYTES = 4 * 1024 * 1024
TAIL_LINES = 40
POLL_S = 0.3
ASK_S = 10.0
TERM_GRACE_S = 5.0
KILL_S = 20.0

# Everything else stays out of the engine: tokens, cloud keys, Ray's variables, our interpreter's paths.
PASSED = ("PATH", "LANG", "TZ", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "USER", "COSMOS_TEST_MARK")
PASSED_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "VLLM_", "TORCH", "TRITON_", "PYTORCH_", "LD_PRELOAD")
FIXED_ENV = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # Longer than a gateway keeps an idle connection: one that is closed under a question looks like a death.
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "60",
    "DO_NOT_TRACK": "1",
    "PYTHONUNBUFFERED": "1",
}


class VllmProcess:
    """
    Args:
        command: interpreter and everything up to the engine's own arguments, without address.
        argv: the engine's arguments (see `args.py`).
        env: the plan's; `secret` is what the server will demand on every path.
        host: address to listen on: loopback on one machine, the node's between machines.
        cache_dir: where compiled kernels are kept over restarts; None: nowhere.
        tls: it speaks TLS with the secret's certificate (`reasoner/tls.py`).
    """

    def __init__(
        self,
        command: Sequence[str],
        argv: Sequence[str],
        env: Mapping[str, str],
        secret: str,
        *,
        host: str = "127.0.0.1",
        cache_dir: Path | None = None,
        tls: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._tls = tls
        self._command, self._argv = list(command), list(argv)
        self._env = engine_environ(os.environ if environ is None else environ) | dict(env)
        self._secret, self._host, self._cache_dir = secret, host, cache_dir
        self._directory: Path | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._session: aiohttp.ClientSession | None = None
        self._held: socket.socket | None = None
        self.url = ""
        self.pid = 0
        self.exit_code: int | None = None
        self.exited = asyncio.Event()
        self.last_words: list[str] = []  # of one that did not start

    async def start(self, timeout_s: float) -> None:
        """Start and wait until it answers /health.

        Raises:
            StartRefused: it cannot start here (interpreter, arguments, model, memory): trying again does not help.
            ServiceFailure: it ended otherwise, or took longer than `timeout_s`.
        """
        try:
            await self._launch()
            async with asyncio.timeout(timeout_s):
                while not await self._answers():
                    if self.exited.is_set():
                        raise start_failure(self.exit_code, self.tail())
                    await asyncio.sleep(POLL_S)
            self._let_go()
        except TimeoutError:
            self.last_words = self.tail()
            last = (self.last_words or ["none"])[-1][:300]
            await self.stop(0.0)
            raise ServiceFailure(
                f"the engine did not answer within {timeout_s:g} s; its last words: {last}",
                code="vllm_start_timeout",
                remedy="raise --start-timeout-s, or see the log above",
            ) from None
        except BaseException:
            self.last_words = self.tail()
            await self.stop(0.0)
            raise

    async def _launch(self) -> None:
        loop = asyncio.get_running_loop()
        # Held until the engine listens, a minute from now: it too binds with SO_REUSEPORT, and we accept nothing.
        self._held = listening_socket(self._host, 0)
        port = self._held.getsockname()[1]
        scheme, host = "https" if self._tls else "http", f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"{scheme}://{host}:{port}"
        self._directory = directory = await asyncio.to_thread(self._prepare)
        # No cookies, no proxies of the environment: this is our own machine.
        connector = aiohttp.TCPConnector(ssl=pinned(self._secret)) if self._tls else None
        self._session = aiohttp.ClientSession(
            headers={SECRET_HEADER: self._secret}, trust_env=False, connector=connector
        )
        order = {
            "command": [
                *self._command,
                *self._argv,
                *("--host", self._host, "--port", str(port), "--middleware", f"{MIDDLEWARE}.ReplicaSecret"),
                *self._tls_arguments(directory),
            ],
            "env": self._env | self._private_env(directory),
            "directory": str(directory),
            "log": str(directory / "engine.log"),
            "log_bytes": LOG_BYTES,
            "grace_s": TERM_GRACE_S,
        }
        self._supervisor = await asyncio.to_thread(_start_supervisor, order)
        threading.Thread(
            target=self._listen, args=(loop, self._supervisor), name="vllm-supervisor", daemon=True
        ).start()
        log.info("engine_starting", pid=self._supervisor.pid)

    def _tls_arguments(self, directory: Path) -> list[str]:
        if not self._tls:
            return []
        return ["--ssl-keyfile", str(directory / KEY), "--ssl-certfile", str(directory / CERTIFICATE)]

    def _prepare(self) -> Path:
        directory = Path(tempfile.mkdtemp(prefix=PREFIX))
        for name in ("home", "tmp", "lib"):
            (directory / name).mkdir(mode=0o700)
        for name, source in ((MIDDLEWARE, secret.__file__), (LAUNCHER, launch.__file__)):
            shutil.copyfile(source, directory / "lib" / f"{name}.py")
        if self._tls:
            identity = identity_of(self._secret)
            (directory / CERTIFICATE).write_text(identity.certificate)
            (directory / KEY).touch(mode=0o600)
            (directory / KEY).write_text(identity.key)
        return directory

    def _private_env(self, directory: Path) -> dict[str, str]:
        env = FIXED_ENV | {
            "HOME": str(directory / "home"),
            "TMPDIR": str(directory / "tmp"),
            "PYTHONPATH": str(directory / "lib"),
            secret.SECRET_ENV: self._secret,
        }
        if self._cache_dir is not None:
            env["VLLM_CACHE_ROOT"] = str(vllm_cache(self._cache_dir))
            for name, folder in (("TORCHINDUCTOR_CACHE_DIR", "inductor"), ("TRITON_CACHE_DIR", "triton")):
                env[name] = str(self._cache_dir / "vllm" / folder)
        return env

    def _listen(self, loop: asyncio.AbstractEventLoop, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with contextlib.suppress(RuntimeError):  # the loop has ended before the engine
            for line in process.stdout:
                with contextlib.suppress(ValueError):
                    loop.call_soon_threadsafe(self._heard, json.loads(line))
            loop.call_soon_threadsafe(self._heard, {"exit": None})

    def _heard(self, line: Mapping[str, Any]) -> None:
        if "pid" in line:
            self.pid = int(line["pid"])
        elif "exit" in line and not self.exited.is_set():
            self.exit_code = line["exit"]
            self.exited.set()

    # ---- how it is --------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return self._supervisor is not None and not self.exited.is_set()

    async def check(self) -> None:
        """
        Raises:
            EngineFailed: it has ended, or says that it cannot work any more.
        """
        if not self.alive:
            raise EngineFailed(f"the engine has ended (exit code {self.exit_code})", code="engine_ended")
        if not await self._answers():
            raise EngineFailed("the engine does not answer /health", code="engine_unhealthy")

    async def figures(self) -> EngineFigures | None:
        """What it works on, and whether it gets on; None while it does not say."""
        assert self._session is not None
        try:
            async with self._session.get(f"{self.url}/metrics", timeout=aiohttp.ClientTimeout(ASK_S)) as answer:
                return parse_figures(await answer.text()) if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError):
            return None

    async def token(self, model: str, timeout_s: float) -> bool:
        """Whether it answers a question with one token in time."""
        assert self._session is not None
        question = {"model": model, "messages": [{"role": "user", "content": "."}], "max_completion_tokens": 1}
        timeout = aiohttp.ClientTimeout(timeout_s)
        try:
            async with self._session.post(f"{self.url}/v1/chat/completions", json=question, timeout=timeout) as answer:
                return answer.status == 200 and bool(await answer.read())
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def _answers(self) -> bool:
        assert self._session is not None
        try:
            async with self._session.get(f"{self.url}/health", timeout=aiohttp.ClientTimeout(ASK_S)) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    def tail(self, lines: int = TAIL_LINES) -> list[str]:
        """The last lines of the engine's output, without blank ones."""
        if self._directory is None:
            return []
        try:
            with (self._directory / "engine.log").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 64 * 1024))
                text = file.read().decode(errors="replace")
        except OSError:
            return []
        return [line for line in text.splitlines() if line.strip()][-lines:]

    # ---- the end ----------------------------------------------------------------------------------------------------

    async def drained(self, grace_s: float) -> bool:
        """Wait until nothing runs or waits there. False: it took longer."""
        try:
            async with asyncio.timeout(grace_s):
                while True:
                    figures = await self.figures()
                    if not self.alive or (figures is not None and figures.running + figures.waiting == 0):
                        return True
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            return False

    async def stop(self, grace_s: float) -> None:
        """End it and everything it started; running answers get `grace_s`. May be called twice."""
        self._let_go()
        if self._supervisor is not None:
            if grace_s > 0:
                await self.drained(grace_s)
            process, self._supervisor = self._supervisor, None
            await asyncio.to_thread(_end_supervisor, process)
        if self._session is not None:
            await self._session.close()
            self._session = None
        if self._directory is not None:
            await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)

    def _let_go(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None


def vllm_cache(cache_dir: Path) -> Path:
    """Where vLLM keeps what it has found out or compiled."""
    return cache_dir / "vllm" / "root"


def engine_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """What of our environment the engine may see."""
    return {k: v for k, v in environ.items() if k in PASSED or k.startswith(PASSED_PREFIXES)}


def _start_supervisor(order: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", supervisor.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
    except OSError:
        raise ServiceFailure("the engine's supervisor did not start", code="vllm_failed") from None
    return process


def _end_supervisor(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(TERM_GRACE_S + KILL_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
