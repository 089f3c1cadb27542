"""A small HTTP server in threads of this process, for as long as a block lasts."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cosmos3_serve.errors import InputError


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no news; what else goes wrong is shown as ever."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], *, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Its URL; `port` 0 is a free one.

    Raises:
        InputError: the address cannot be bound.
    """
    try:
        server = _Server((host, port), handler)
    except OSError as error:
        raise InputError(f"cannot serve on {host}:{port}: {error.strerror}") from None
    # How long the end of the block may wait for it: every run has two such servers.
    how = {"poll_interval": 0.05}
    thread = threading.Thread(target=server.serve_forever, kwargs=how, name="bench-http", daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)
