"""A recording proxy: which headers a load generator really sends. It stands there before a run, not in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import httpx

from cosmos3_serve.bench.serving import serving
from cosmos3_serve.proxies import direct

MAX_BODY = 256 * 1024 * 1024
_HOP = {
    "connection", "keep-alive", "transfer-encoding", "host", "content-length", "te", "upgrade", "proxy-authorization",
}  # fmt: skip


class Recorded:
    """Header names and values of each POST and of its answer, lower case names; the bearer token is left out."""

    def __init__(self) -> None:
        self.requests: list[dict[str, str]] = []
        self.answers: list[dict[str, str]] = []

    def names(self) -> set[str]:
        return {name for request in self.requests for name in request}


@contextmanager
def recording_proxy(upstream: str, *, timeout_s: float = 600.0) -> Iterator[tuple[str, Recorded]]:
    """The URL of a proxy on the loopback address that forwards to `upstream`, and what it has seen."""
    recorded = Recorded()
    client = httpx.Client(base_url=upstream, timeout=timeout_s, mounts=direct(upstream))

    class Handler(BaseHTTPRequestHandler):
        timeout = 60

        def do_GET(self) -> None:
            self._forward(b"")

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not length.isdigit() or int(length) > MAX_BODY:
                self.send_error(411)
                return
            kept = {name.lower(): value for name, value in self.headers.items() if name.lower() != "authorization"}
            recorded.requests.append(kept)
            self._forward(self.rfile.read(int(length)))

        def _forward(self, body: bytes) -> None:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
            try:
                with client.stream(self.command, self.path, content=body, headers=headers) as answer:
                    if self.command == "POST":
                        recorded.answers.append({name.lower(): value for name, value in answer.headers.items()})
                    self.send_response(answer.status_code)
                    for name, value in answer.headers.items():
                        if name.lower() not in _HOP and name.lower() != "content-encoding":
                            self.send_header(name, value)
                    self.send_header("Connection", "close")
                    self.end_headers()
                    for piece in answer.iter_bytes():
                        self.wfile.write(piece)
                        self.wfile.flush()
            except httpx.HTTPError:
                self.close_connection = True
            except OSError:
                pass  # the load generator went away

        def log_message(self, format: str, *args: object) -> None:
            pass

    with client, serving(Handler) as url:
        yield url, recorded
