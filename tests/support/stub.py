"""An HTTP endpoint that answers every request alike and keeps what it was sent: the wire, without a server's view."""

from __future__ import annotations

import http.server
import threading

Sent = tuple[str, str, dict[str, str], bytes]  # method, target, headers by lower-case name, body


class Stub:
    """`with Stub(200, b"") as (url, seen): ...`"""

    def __init__(self, status: int, body: bytes) -> None:
        seen: list[Sent] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self) -> None:
                sent = self.rfile.read(int(self.headers.get("content-length", "0")))
                seen.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, sent))
                self.send_response(status)
                self.send_header("ETag", '"e"')
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer

            def log_message(self, *_: object) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._seen = seen

    def __enter__(self) -> tuple[str, list[Sent]]:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_address[1]}", self._seen

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
