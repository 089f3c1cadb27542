"""How the support servers answer: JSON, text, and artifact files with Range and ETag, or with the faults asked for."""

from __future__ import annotations

import hashlib
import json
import mimetypes
import re
import socket
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any


class ArtifactSender(BaseHTTPRequestHandler):
    """`app` carries `root` (the output root) and `faults`."""

    protocol_version = "HTTP/1.1"
    app: Any

    # ---- answers ---------------------------------------------------------------------------------------------------

    def send(self, status: int, body: Any, **headers: str) -> None:
        data = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
        self.reply(status, data, "application/json", **headers)

    def plain(self, status: int, text: str) -> None:
        self.reply(status, text.encode(), "text/plain; charset=utf-8")

    def reply(self, status: int, data: bytes, kind: str, **headers: str) -> None:
        self.send_response(status)
        for key, value in ({"Content-Type": kind, "Content-Length": str(len(data))} | headers).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def send_artifact(self, relative: str) -> None:
        app, faults = self.app, self.app.faults
        if faults.artifact_statuses:
            status = faults.artifact_statuses.pop(0)
            self.send(status, {"detail": f"planned {status}"})
            return
        path = (app.root / relative).resolve()
        if app.root not in path.parents or not path.is_file():
            self.send(404, {"detail": "artifact not found"})
            return
        size, start, stop, status = path.stat().st_size, 0, path.stat().st_size, 200
        headers = {"Content-Type": mimetypes.guess_type(path.name)[0] or "application/octet-stream"}
        if not faults.no_range:
            etag = f'"{hashlib.sha256(f"{path}{size}".encode()).hexdigest()[:32]}"'
            headers |= {"Accept-Ranges": "bytes", "ETag": etag, "Last-Modified": self.date_time_string(0)}
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if wanted and self.headers.get("If-Range", etag) == etag:
                start = int(wanted[1])
                stop = min(int(wanted[2]) + 1, size) if wanted[2] else size
                if start >= size:
                    self.reply(416, b"", "text/plain", **{"Content-Range": f"bytes */{size}"})
                    return
                status, headers["Content-Range"] = 206, f"bytes {start}-{stop - 1}/{size}"
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(stop - start)}).items():
            self.send_header(key, value)
        self.end_headers()
        self._stream(path, start, stop)

    def _stream(self, path: Path, start: int, stop: int) -> None:
        faults, sent = self.app.faults, 0
        flip = next((suffix for suffix, times in faults.flip_bytes.items() if times and str(path).endswith(suffix)), "")
        if flip:
            faults.flip_bytes[flip] -= 1
        cut = faults.cut_downloads > 0
        faults.cut_downloads -= cut
        with path.open("rb") as file:
            file.seek(start)
            while start < stop and (chunk := file.read(min(256 * 1024, stop - start))):
                start += len(chunk)
                if flip and start == stop:
                    chunk = chunk[:-1] + bytes([chunk[-1] ^ 0xFF])
                if cut and sent + len(chunk) > faults.cut_after:
                    self.wfile.write(chunk[: max(0, faults.cut_after - sent)])
                    self.close_connection = True
                    return
                time.sleep(faults.chunk_delay_s)
                try:
                    self.wfile.write(chunk)
                except OSError:  # the client left; a killed client is part of the tests
                    self.close_connection = True
                    return
                sent += len(chunk)
