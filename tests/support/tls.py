"""A threaded HTTP server behind a certificate that nobody trusts yet."""

from __future__ import annotations

import threading
from http.server import HTTPServer
from pathlib import Path

from support.web import certificate


class Tls:
    """Serves `server` on a thread until `close`; `authority` is the PEM file to trust."""

    def __init__(self, folder: Path, server: HTTPServer) -> None:
        context, _ = certificate(folder, "localhost")
        self.authority = folder / "server.pem"
        self._server = server
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://localhost:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
