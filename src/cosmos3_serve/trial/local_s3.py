"""A real S3 API server on this machine, for the quickstart and the tests: own process, free loopback port.

    with LocalS3() as s3:
        s3.create_bucket("quickstart")
        environ = {**os.environ, **s3.environ}

It keeps its objects for as long as it runs. The child ends when told to, and also when its parent dies: it watches
its standard input, which the kernel closes with the parent, and its parent's process id.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
from types import TracebackType
from typing import Self

from cosmos3_serve.errors import ServiceFailure, UsageError

REGION = "us-east-1"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0


class LocalS3:
    """The server process. `endpoint` is its URL and `environ` what a client needs, both set once started."""

    def __init__(self) -> None:
        self.endpoint = ""
        self._access_key = "local-" + secrets.token_hex(6)
        self._secret_key = secrets.token_hex(20)
        self._process: subprocess.Popen[str] | None = None

    @property
    def environ(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self._access_key,
            "AWS_SECRET_ACCESS_KEY": self._secret_key,
            "AWS_REGION": REGION,
        }

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def start(self) -> Self:
        """Start the server and wait until it answers.

        Raises:
            UsageError: code `extra_missing`: moto is not installed.
            ServiceFailure: the server did not come up.
        """
        process = subprocess.Popen(
            [sys.executable, "-m", "cosmos3_serve.trial.local_s3"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # a Ctrl-C at the terminal reaches the parent, which then stops us in its order
        )
        self._process = process
        said = _first_line(process)
        if said.get("missing"):
            self.stop()
            raise UsageError(
                f"the local S3 server needs the package {said['missing']}",
                remedy="pip install '.[quickstart]' in a checkout of cosmos3-serve",
                code="extra_missing",
            )
        if not said.get("port"):
            self.stop()
            raise ServiceFailure(f"the local S3 server did not start within {START_TIMEOUT_S:g} s")
        self.endpoint = f"http://127.0.0.1:{said['port']}"
        return self

    def create_bucket(self, name: str) -> None:
        """Create a bucket; one that exists is fine.

        Raises:
            ServiceFailure: the server refused.
        """
        import httpx

        answer = httpx.put(f"{self.endpoint}/{name}", timeout=30, trust_env=False)
        if answer.status_code not in (200, 409):
            raise ServiceFailure(f"the local S3 server did not create the bucket (HTTP {answer.status_code})")

    def stop(self) -> None:
        """End the server; harmless when it is not running."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin:
            process.stdin.close()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout:
            process.stdout.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


def _first_line(process: subprocess.Popen[str]) -> dict[str, object]:
    """What the child announces, or {} when it ends or stays silent."""
    timer = threading.Timer(START_TIMEOUT_S, process.kill)
    timer.start()
    try:
        line = process.stdout.readline() if process.stdout else ""
        said = json.loads(line) if line.strip() else {}
    except ValueError:
        said = {}
    finally:
        timer.cancel()
    return said if isinstance(said, dict) else {}


def _serve() -> None:
    """The child: announce the port on stdout, serve until the parent is gone."""
    parent = os.getppid()
    try:
        from moto.server import ThreadedMotoServer
    except ImportError as error:
        print(json.dumps({"missing": error.name or "moto"}), flush=True)
        return
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    print(json.dumps({"port": server.get_host_and_port()[1]}), flush=True)

    gone = threading.Event()

    def watch_stdin() -> None:
        while os.read(0, 4096):
            pass
        gone.set()

    threading.Thread(target=watch_stdin, daemon=True).start()
    while not gone.wait(0.5) and os.getppid() == parent:
        pass
    os._exit(0)  # request threads hold nothing worth waiting for


if __name__ == "__main__":
    _serve()
