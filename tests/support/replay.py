"""Replay: a double of a service that gives one recorded answer to every batch, and has no artifact to give.

It exists to see what a client asks for after a response: a client that rejects the response asks for no artifact.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Replay:
    """`endpoint`; `asked`: (method, path) in order."""

    endpoint: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)

    @property
    def posts(self) -> int:
        return self.asked.count(("POST", "/v1/batches"))

    @property
    def artifacts(self) -> list[str]:
        return [path for _, path in self.asked if path.startswith("/v1/artifacts/")]


@contextmanager
def replay(ready: Mapping[str, Any], response: Mapping[str, Any]) -> Iterator[Replay]:
    """Serve `ready` at /ready and `response` to every POST, on a free loopback port."""
    state = Replay()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(("GET", self.path))
            if self.path == "/ready":
                self._send(200, ready)
            else:
                self._send(404, {"detail": "Not Found"})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            state.asked.append(("POST", self.path))
            self._send(200, response)

        def _send(self, status: int, body: Mapping[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
