"""The probe against real sockets: a token from either place, an answer in time, and nothing heavy imported."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cosmos3_serve.service import probe
from cosmos3_serve.settings import (
    REASONER_TOKEN_ENV,
    REASONER_TOKEN_FILE_ENV,
    TOKEN_ENV,
    TOKEN_FILE_ENV,
    GeneratorSettings,
    ReasonerSettings,
)

TOKEN = "a-token-of-the-tests"


class Server:
    """Answers 200 on /health and 503 on /ready to those with the token."""

    def __init__(self) -> None:
        seen = self.seen = []  # type: list[str]

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                seen.append(self.path)
                known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
                self.send_response((200 if self.path == "/health" else 503) if known else 401)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.server.shutdown()
    made.server.server_close()


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("NPA_", "COSMOS3_"))}
    command = [sys.executable, "-m", "cosmos3_serve.service.probe", *arguments]
    return subprocess.run(command, env=clean | environ, capture_output=True, text=True, timeout=60)


def test_the_names_are_those_of_the_settings() -> None:
    generator, reasoner = probe.SERVICES["generator"], probe.SERVICES["reasoner"]
    assert generator[2:] == (TOKEN_ENV, TOKEN_FILE_ENV)
    assert reasoner[2:] == (REASONER_TOKEN_ENV, REASONER_TOKEN_FILE_ENV)
    for names, model in ((generator, GeneratorSettings), (reasoner, ReasonerSettings)):
        assert names[:2] == (model.env_name("host"), model.env_name("port"))
        assert str(model.model_fields["port"].default) == probe.DEFAULT_PORT


def test_it_asks_with_the_token_of_the_environment(server: Server) -> None:
    done = run("generator", NPA_COSMOS3_RAY_TOKEN=TOKEN, NPA_COSMOS3_RAY_PORT=str(server.port))
    assert (done.returncode, done.stderr) == (0, "")
    assert server.seen == ["/health"]


def test_it_asks_with_the_first_token_of_the_file(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"# a remark\n\nteam-a: {TOKEN}\nteam-b:another-token\n")
    done = run("reasoner", "--port", str(server.port), COSMOS3_REASONER_TOKEN_FILE=str(file))
    assert done.returncode == 0, done.stderr


def test_a_service_that_is_not_ready_is_alive(server: Server) -> None:
    environ = {"NPA_COSMOS3_RAY_TOKEN": TOKEN, "NPA_COSMOS3_RAY_PORT": str(server.port)}
    assert run("generator", **environ).returncode == 0
    done = run("generator", "--path", "/ready", **environ)
    assert (done.returncode, done.stderr) == (1, "GET /ready was answered with 503\n")


def refuse() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "holds a token"),
        ({TOKEN_FILE_ENV: "/nowhere/tokens"}, "cannot be read (FileNotFoundError)"),
        ({TOKEN_ENV: "täglich-geheim"}, "no token may have"),
        ({TOKEN_ENV: TOKEN, "NPA_COSMOS3_RAY_PORT": "http"}, "is no port"),
        ({TOKEN_ENV: TOKEN, "NPA_COSMOS3_RAY_PORT": str(refuse())}, "ConnectionRefusedError"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_without_the_token(environ: dict[str, str], words: str) -> None:
    done = run("generator", **environ)
    assert done.returncode == 1
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert environ.get(TOKEN_ENV, "no token") not in done.stderr


def dribble(peer: socket.socket) -> None:
    for _ in range(100):
        peer.sendall(b"H")
        time.sleep(0.1)


@pytest.mark.parametrize("behave", [lambda peer: time.sleep(30), dribble], ids=["silent", "a byte now and then"])
def test_it_ends_in_time_whatever_the_peer_does(behave: Callable[[socket.socket], None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            peer, _ = listening.accept()
            with contextlib.suppress(OSError):
                behave(peer)

        threading.Thread(target=serve, daemon=True).start()
        environ = {TOKEN_ENV: TOKEN, "NPA_COSMOS3_RAY_PORT": str(listening.getsockname()[1])}
        began = time.monotonic()
        done = run("generator", "--timeout", "1", **environ)
    assert done.returncode == 1
    assert "TimeoutError" in done.stderr
    assert time.monotonic() - began < 20


def test_it_imports_the_standard_library_only() -> None:
    script = (
        "import cosmos3_serve.service.probe, sys, json;"
        "print(json.dumps(sorted({m.split('.')[0] for m in sys.modules} - set(sys.stdlib_module_names))))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert {name for name in json.loads(done.stdout) if not name.startswith(("_", "site", "editable"))} <= {
        "cosmos3_serve"
    }
