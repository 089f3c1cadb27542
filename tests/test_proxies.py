"""What is meant for this machine goes to no proxy of the environment: by either HTTP client, and by the S3 client."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import httpx
import pytest

from cosmos3_serve.client.deadline import Deadline
from cosmos3_serve.client.http import Service
from cosmos3_serve.errors import Unreachable
from cosmos3_serve.proxies import direct, is_loopback
from cosmos3_serve.retry import ONCE
from cosmos3_serve.storage.bucket import BucketStore
from cosmos3_serve.storage.credentials import S3Access


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "a.localhost", "127.0.0.1", "127.8.9.1", "::1", "[::1]"])
def test_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "10.0.0.1", "localhost.example", "127.0.0.1.example", "svc", "::2"])
def test_another_machine(host: str) -> None:
    assert not is_loopback(host)


class Quiet(http.server.BaseHTTPRequestHandler):
    """Says 200 to everything, with an entity tag as S3 gives one."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_PUT = do_GET

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server on a loopback port, and an environment whose proxy nobody answers for."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(name.lower(), "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_the_batch_client_asks_this_machine_directly_and_others_by_the_proxy(port: int, host: str) -> None:
    async with Service(f"http://{host}:{port}", "token", Deadline(20)) as service:
        assert (await service.call("GET", "/ready", retry=ONCE)).status == 200
    async with Service("http://service.invalid:8000", "token", Deadline(20)) as service:
        with pytest.raises(Unreachable):
            await service.call("GET", "/ready", retry=ONCE)


def test_other_hosts_of_one_client_keep_the_proxy(port: int) -> None:
    with httpx.Client(mounts=direct(f"http://127.0.0.1:{port}")) as client:
        assert client.get(f"http://127.0.0.1:{port}/").status_code == 200
        with pytest.raises(httpx.ConnectError):
            client.get(f"http://localhost:{port}/")
    assert direct("https://service.example") == {}


async def test_the_s3_client_asks_this_machine_directly(port: int) -> None:
    access = S3Access(f"http://127.0.0.1:{port}", "us-east-1", "key", "secret")
    assert (await BucketStore("bucket", access).put_bytes("k", b"x")).etag == '"1"'
