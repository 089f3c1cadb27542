"""Which index PyTorch comes from: a device decides, then whether the CPU index can be reached, in bounded time."""

from __future__ import annotations

import runpy
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "torch_index.py"
MODULE: dict[str, Any] = runpy.run_path(str(SCRIPT))
choose, has_gpu = MODULE["choose"], MODULE["has_gpu"]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/good/torch/" else 404)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


def test_without_a_device_it_is_the_cpu_index(server: str) -> None:
    address, said = choose(platform="linux", gpu=False, index=f"{server}/good")
    assert address == f"{server}/good"
    assert "no NVIDIA device" in said and "CPU build" in said and "MB" in said


@pytest.mark.parametrize("index", ["bad", "good"])
def test_with_a_device_nobody_is_asked(server: str, index: str) -> None:
    address, said = choose(platform="linux", gpu=True, index=f"{server}/{index}")
    assert address == "" and "CUDA build" in said and "GB" in said


def test_an_index_without_torch_or_without_a_server_is_not_used(server: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for index in (f"{server}/bad", f"http://127.0.0.1:{port}", "no address"):
        address, said = choose(platform="linux", gpu=False, index=index)
        assert address == "" and "cannot be reached" in said and "CUDA build" in said


def test_an_index_that_never_answers_holds_nothing_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address, _ = choose(
            platform="linux", gpu=False, index=f"http://127.0.0.1:{silent.getsockname()[1]}", wait_s=0.2
        )
        assert address == ""


def test_what_is_given_settles_it_and_other_systems_need_none(server: str) -> None:
    assert choose("https://mine.example", platform="linux", gpu=True)[0] == "https://mine.example"
    assert choose(platform="darwin", gpu=False, index=f"{server}/good")[0] == ""


def test_a_device_is_what_nvidia_smi_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if any(Path("/dev").glob("nvidia[0-9]*")):
        assert has_gpu()
        return
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not has_gpu()
    program = tmp_path / "nvidia-smi"
    for code in (0, 9):
        program.write_text(f"#!/bin/sh\nexit {code}\n")
        program.chmod(0o755)
        assert has_gpu() is (code == 0)


def test_stdout_is_the_address_alone() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "https://mine.example"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "https://mine.example\n")
    assert "https://mine.example" in done.stderr
