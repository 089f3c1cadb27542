"""Serve the clips over HTTP to replicas and gateways: a directory, read-only, by Range where asked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from cosmos3_serve.bench.serving import serving
from cosmos3_serve.bench.videos import MIME, Recipe, VideoSet, listed

CHUNK = 256 * 1024
_RANGE = re.compile(r"bytes=(\d+)-(\d*)\Z")


@contextmanager
def serve_videos(directory: Path, listing: VideoSet, *, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """The base URL of a server in threads of this process, which serves what the listing names and nothing else.

    Raises:
        InputError: the address cannot be bound.
    """
    sizes = {video.name: video.bytes for video in listing.videos}
    tags = {video.name: f'"{video.sha256}"' for video in listing.videos}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, body: bool) -> None:
            name = self.path.lstrip("/").partition("?")[0]
            if name not in sizes:
                self.send_error(404)
                return
            start, end = 0, sizes[name] - 1
            found = _RANGE.match(self.headers.get("Range", ""))
            if found:
                start, end = int(found[1]), min(end, int(found[2]) if found[2] else end)
                if start > end:
                    self.send_error(416)
                    return
            self.send_response(206 if found else 200)
            if found:
                self.send_header("Content-Range", f"bytes {start}-{end}/{sizes[name]}")
            self.send_header("Content-Type", MIME[name.rpartition(".")[2]])
            self.send_header("Content-Length", str(end - start + 1))
            self.send_header("ETag", tags[name])
            self.send_header("Accept-Ranges", "bytes")
            self.end_headers()
            if body:
                self._send(directory / name, start, end - start + 1)

        def _send(self, path: Path, start: int, left: int) -> None:
            with path.open("rb") as file:
                file.seek(start)
                while left and (piece := file.read(min(CHUNK, left))):
                    self.wfile.write(piece)
                    left -= len(piece)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with serving(Handler, host=host, port=port) as url:
        yield url


@contextmanager
def serve_file(path: Path, *, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """The base URL of a server of one clip under its own name, which is one of a set's (`video-00000.mp4`)."""
    listing = VideoSet(recipe=Recipe(), made_by="elsewhere", videos=[listed(path)])
    with serve_videos(path.parent, listing, host=host, port=port) as url:
        yield url
