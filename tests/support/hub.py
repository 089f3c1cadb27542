"""StubHub: a stand-in for the Hub on loopback, small enough to read. A stub, and named one: it holds no real weights.

It speaks the paths that the real huggingface_hub client uses (repository info, tree, resolve, the redirect of large
files to where their bytes lie), with the headers that client demands, so that the real client is what runs in tests.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

LARGE = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
GOOD_TOKEN = "hf_stub_entitled"
OTHER_TOKEN = "hf_stub_without_entitlement"


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Repo:
    """Files of one revision. `gated`: only `GOOD_TOKEN` may read. `lies`: bytes served in place of the declared."""

    revision: str
    files: dict[str, bytes]
    gated: bool = False
    lies: dict[str, bytes] = field(default_factory=dict)


@dataclass
class StubHub:
    """What it holds, how it misbehaves, and what it was asked: (method, path, authorization or None)."""

    repos: dict[str, Repo] = field(default_factory=dict)
    endpoint: str = ""
    head_allowed: bool = True
    status: int | None = None  # answer everything so
    login_page: bool = False  # answer everything as a proxy's login page does
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)

    def environ(self, token: str | None = GOOD_TOKEN) -> dict[str, str]:
        return {"HF_ENDPOINT": self.endpoint} | ({"HF_TOKEN": token} if token else {})

    def downloads(self) -> list[str]:
        """Paths whose bytes were fetched."""
        return [p for m, p, _ in self.asked if m == "GET" and ("/resolve/" in p or p.startswith("/stub-bytes/"))]


@contextmanager
def stub_hub(repos: dict[str, Repo] | None = None) -> Iterator[StubHub]:
    hub = StubHub(dict(repos or {}))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            _answer(self, hub, body=True)

        def do_HEAD(self) -> None:
            _answer(self, hub, body=False)

        def log_message(self, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128  # the client opens many connections at once

    server = Server(("127.0.0.1", 0), Handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def _answer(request: BaseHTTPRequestHandler, hub: StubHub, *, body: bool) -> None:
    url = urlsplit(request.path)
    path = unquote(url.path)
    hub.asked.append((request.command, path, request.headers.get("Authorization")))
    if hub.login_page:
        return _send(request, 302, b"", {"Location": "https://login.example/", "ETag": '"x"'}, body=body)
    if hub.status is not None:
        return _send(request, hub.status, b"{}", {}, body=body)
    if path == "/api/whoami-v2":
        known = (request.headers.get("Authorization") or "").removeprefix("Bearer ") in (GOOD_TOKEN, OTHER_TOKEN)
        return _send(request, 200 if known else 401, b'{"name": "stub-account"}' if known else b"{}", {}, body=body)
    if path.startswith("/stub-bytes/"):
        return _bytes(request, _find(hub, path.removeprefix("/stub-bytes/")), {}, body=body)
    parts = path.strip("/").split("/")
    if parts[:2] == ["api", "models"] and len(parts) >= 4:
        return _api(request, hub, "/".join(parts[2:4]), parts[4:], parse_qs(url.query), body=body)
    if len(parts) > 4 and parts[2] == "resolve":
        return _resolve(request, hub, "/".join(parts[:2]), parts[3], "/".join(parts[4:]), body=body)
    return _send(request, 404, b"{}", {}, body=body)


def _refusal(request: BaseHTTPRequestHandler, hub: StubHub, name: str, revision: str) -> tuple[int, str] | None:
    token = (request.headers.get("Authorization") or "").removeprefix("Bearer ")
    if token and token not in (GOOD_TOKEN, OTHER_TOKEN):
        return 401, ""
    if name not in hub.repos:
        return 404, "RepoNotFound"
    repo = hub.repos[name]
    if revision not in (repo.revision, "main"):
        return 404, "RevisionNotFound"
    if repo.gated and "/resolve/" in request.path and token != GOOD_TOKEN:
        return (403, "GatedRepo") if token else (401, "GatedRepo")
    return None


def _api(
    request: BaseHTTPRequestHandler,
    hub: StubHub,
    name: str,
    rest: list[str],
    query: dict[str, list[str]],
    *,
    body: bool,
) -> None:
    revision = rest[1] if len(rest) > 1 else "main"
    refused = _refusal(request, hub, name, revision)
    if refused is not None:
        return _send(request, refused[0], b"{}", {"X-Error-Code": refused[1]}, body=body)
    repo = hub.repos[name]
    if rest and rest[0] == "tree":
        answer: Any = [_tree_entry(path, data) for path, data in sorted(repo.files.items())]
    else:
        files = [_sibling(p, d, "blobs" in query) for p, d in sorted(repo.files.items())]
        answer = {"id": name, "modelId": name, "sha": repo.revision, "private": False, "siblings": files, "tags": []}
        answer |= {"gated": "auto" if repo.gated else False, "downloads": 0, "likes": 0}
    return _send(request, 200, json.dumps(answer).encode(), {"Content-Type": "application/json"}, body=body)


def _lfs(data: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}


def _sibling(path: str, data: bytes, blobs: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {"rfilename": path}
    if blobs:
        entry |= {"size": len(data), "blobId": git_sha1(data)}
        if path.endswith(LARGE):
            entry["lfs"] = _lfs(data)
    return entry


def _tree_entry(path: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": git_sha1(data)}
    if path.endswith(LARGE):
        lfs = _lfs(data)
        entry["lfs"] = {"oid": lfs["sha256"], "size": lfs["size"], "pointerSize": lfs["pointerSize"]}
    return entry


def _resolve(request: BaseHTTPRequestHandler, hub: StubHub, name: str, revision: str, path: str, *, body: bool) -> None:
    refused = _refusal(request, hub, name, revision)
    if refused is not None:
        return _send(request, refused[0], b"", {"X-Error-Code": refused[1]}, body=body)
    repo = hub.repos[name]
    headers = {"X-Repo-Commit": repo.revision}
    if path not in repo.files:
        return _send(request, 404, b"", headers | {"X-Error-Code": "EntryNotFound"}, body=body)
    if request.command == "HEAD" and not hub.head_allowed:
        return _send(request, 405, b"", {}, body=body)
    data = repo.files[path]
    if path.endswith(LARGE):
        sha256 = hashlib.sha256(data).hexdigest()
        headers |= {
            "X-Linked-ETag": f'"{sha256}"', "X-Linked-Size": str(len(data)),
            # Another host, as the Hub's: no token is sent there, and a client asks it for bytes only.
            "Location": f"{hub.endpoint.replace('127.0.0.1', 'localhost')}/stub-bytes/{name}/{path}",
        }  # fmt: skip
        return _send(request, 302, b"", headers, body=body)
    return _bytes(request, repo.lies.get(path, data), headers | {"ETag": f'"{git_sha1(data)}"'}, body=body)


def _find(hub: StubHub, where: str) -> bytes:
    owner, name, path = where.split("/", 2)
    repo = hub.repos[f"{owner}/{name}"]
    return repo.lies.get(path, repo.files[path])


def _bytes(request: BaseHTTPRequestHandler, data: bytes, headers: dict[str, str], *, body: bool) -> None:
    wanted = request.headers.get("Range")
    if wanted is None:
        return _send(request, 200, data, headers, body=body)
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    part = data[int(first) : int(last) + 1 if last else None]
    total = {"Content-Range": f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"}
    return _send(request, 206, part, headers | total, body=body)


def _send(request: BaseHTTPRequestHandler, status: int, data: bytes, headers: dict[str, str], *, body: bool) -> None:
    request.send_response(status)
    for name, value in ({"Content-Length": str(len(data))} | headers).items():
        request.send_header(name, value)
    request.end_headers()
    if body:
        request.wfile.write(data)
