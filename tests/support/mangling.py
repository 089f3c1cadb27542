"""A proxy between a client and a service that damages the responses of batches on the way, and nothing else."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

DROPPED = {"transfer-encoding", "connection", "content-length", "date", "server", "host"}


class ManglingProxy:
    """Context manager; `endpoint` takes the place of the service's. `mangled` are the bytes that the client got."""

    def __init__(self, upstream: str) -> None:
        self.mangled: list[bytes] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {k: v for k, v in self.headers.items() if k.lower() not in DROPPED}
                with httpx.Client(base_url=upstream, timeout=120, trust_env=False) as client:
                    answer = client.request(self.command, self.path, content=body, headers=headers)
                data = answer.content
                if self.path.endswith("/response") and answer.status_code == 200:
                    data = data[: len(data) // 2]
                    proxy.mangled.append(data)
                self.send_response(answer.status_code)
                for name, value in answer.headers.items():
                    if name.lower() not in DROPPED:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_GET

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def __enter__(self) -> ManglingProxy:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
