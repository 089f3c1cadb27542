"""OciRegistry: an image registry on loopback that speaks the distribution API's questions about manifests. A double.

It holds no layers. What it demands (nothing, bearer tokens, Basic) and how it misbehaves is set on it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

MANIFEST = json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json"}).encode()
DIGEST = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"
USER, PASSWORD = "robot", "stub-password"
REPOSITORY = "team/cosmos3-service"


@dataclass
class OciRegistry:
    """`asked`: (method, path, kind of authorization, or "") of each question, tokens included.

    Args:
        demands: "" (anybody), "bearer" (a token; `anonymous` says whether anybody gets one) or "basic".
        answer: status and headers for every manifest, whatever it is.
        digest: sent as Docker-Content-Digest; empty: the header is left out.
        any_digest: the same manifest is served whatever digest is asked for.
        redirect: where manifests are sent instead.
    """

    host: str = ""
    demands: str = ""
    anonymous: bool = True
    head_allowed: bool = True
    answer: tuple[int, Mapping[str, str]] | None = None
    token_answer: tuple[int, bytes] | None = None
    digest: str = DIGEST
    any_digest: bool = False
    redirect: str = ""
    realm: str = ""
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    scopes: list[str] = field(default_factory=list)

    @property
    def image(self) -> str:
        return f"{self.host}/{REPOSITORY}@{DIGEST}"

    def respond(self, method: str, url: str, authorization: str) -> tuple[int, Mapping[str, str], bytes]:
        parts = urlsplit(url)
        self.asked.append((method, parts.path, authorization.partition(" ")[0]))
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if parts.path == "/token":
            self.scopes += parse_qs(parts.query).get("scope", [])
            if self.token_answer is not None:
                return self.token_answer[0], {}, self.token_answer[1]
            known = authorization == f"Basic {login}"
            if not known and (authorization or not self.anonymous):
                return 401, {}, b"{}"
            return 200, {}, json.dumps({"token": "stub-token"}).encode()
        if self.answer is not None:
            return self.answer[0], self.answer[1], b""
        if method == "HEAD" and not self.head_allowed:
            return 405, {}, b""
        realm = self.realm or f"http://{self.host}/token"
        scope = f"repository:{REPOSITORY}:pull"
        if self.demands == "bearer" and authorization != "Bearer stub-token":
            challenge = f'Bearer realm="{realm}",service="stub",scope="{scope}"'
            return 401, {"WWW-Authenticate": challenge}, b"{}"
        if self.demands == "basic" and authorization != f"Basic {login}":
            return 401, {"WWW-Authenticate": 'Basic realm="stub"'}, b"{}"
        if self.redirect:
            return 307, {"Location": self.redirect}, b""
        if parts.path != f"/v2/{REPOSITORY}/manifests/{DIGEST}" and not self.any_digest:
            return 404, {}, b"{}"
        return 200, {"Docker-Content-Digest": self.digest} if self.digest else {}, MANIFEST


@contextmanager
def oci_registry(**how: Any) -> Iterator[OciRegistry]:
    registry = OciRegistry(**how)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, *, body: bool) -> None:
            status, headers, data = registry.respond(self.command, self.path, self.headers.get("Authorization", ""))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    registry.host = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
