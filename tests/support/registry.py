"""StubRegistry: a stand-in for the token exchange of NVIDIA's registry. A stub, and named one; it knows two keys."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

GOOD_KEY = "nvapi-stub-good"
UNENTITLED_KEY = "nvapi-stub-without-entitlement"


@dataclass
class StubRegistry:
    """`asked`: (path, scope, user) of each question. `answer`: status and body for everything; `delay_s` before it."""

    endpoint: str = ""
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    answer: tuple[int, bytes] | None = None
    delay_s: float = 0.0


@contextmanager
def stub_registry() -> Iterator[StubRegistry]:
    registry = StubRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            user, _, key = base64.b64decode(self.headers.get("Authorization", "")[6:]).decode().partition(":")
            registry.asked.append((url.path, parse_qs(url.query).get("scope", [""])[0], user))
            time.sleep(registry.delay_s)
            known = {GOOD_KEY: (200, {"token": "stub-token"}), UNENTITLED_KEY: (402, {"error": "no subscription"})}
            status, body = known.get(key, (401, {"error": "unknown key"}))
            data = json.dumps(body).encode()
            if registry.answer is not None:
                status, data = registry.answer
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    registry.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
