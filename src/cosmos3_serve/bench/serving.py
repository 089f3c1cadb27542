"""A small HTTP server in threads of this process, for as long as a block lasts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cosmos3_serve.errors import InputError


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], *, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Its URL; `port` 0 is a free one.

    Raises:
        InputError: the address cannot be bound.
    """
    try:
        server = ThreadingHTTPServer((host, port), handler)
    except OSError as error:
        raise InputError(f"cannot serve on {host}:{port}: {error.strerror}") from None
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="bench-http", daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)
