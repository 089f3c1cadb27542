"""Each usual mistake of an operator has its own code and remedy: authority, region, Object Lock."""

from __future__ import annotations

import http.server
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.flaky import FlakyProxy, canned
from support.tls import Tls

from cosmos3_serve.errors import StorageFailure, UsageError
from cosmos3_serve.storage.bucket import BucketStore
from cosmos3_serve.storage.credentials import S3Access

if TYPE_CHECKING:
    from conftest import Bucket  # type: ignore[import-not-found]


class Accepting(http.server.BaseHTTPRequestHandler):
    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tls]:
    server = Tls(tmp_path_factory.mktemp("tls"), http.server.ThreadingHTTPServer(("127.0.0.1", 0), Accepting))
    yield server
    server.close()


def store(url: str, **more: str) -> BucketStore:
    given = {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", **more}
    return BucketStore("bucket", S3Access.from_environ(given))


async def test_an_untrusted_certificate_is_named_at_once(tls: Tls) -> None:
    with pytest.raises(StorageFailure) as caught:
        await store(tls.url).put_bytes("k", b"x")
    assert caught.value.stable_code == "storage_certificate_untrusted" and not caught.value.retryable
    assert "AWS_CA_BUNDLE" in caught.value.remedy and "SSL_CERT_FILE" in caught.value.remedy


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "SSL_CERT_FILE"])
async def test_an_authority_of_ones_own_is_trusted_by_either_variable(tls: Tls, tmp_path: Path, variable: str) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(f"# two of them\n{tls.authority.read_text()}{tls.authority.read_text()}")
    assert (await store(tls.url, **{variable: str(bundle)}).put_bytes("k", b"x")).etag == '"1"'


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_an_unreadable_bundle_is_an_input_error(tmp_path: Path, content: str | None) -> None:
    bundle = tmp_path / "bundle.pem"
    if content:
        bundle.write_text(content)
    with pytest.raises(UsageError, match="AWS_CA_BUNDLE") as caught:
        store("https://localhost:1", AWS_CA_BUNDLE=str(bundle))
    assert caught.value.stable_code == "ca_bundle_unreadable"


@pytest.mark.parametrize(
    ("answer", "code", "remedy"),
    [
        (canned("400 Bad Request", "<Error><Code>AuthorizationHeaderMalformed</Code><Message>the region 'us-east-1' is "
         "wrong; expecting 'eu-north-1'</Message><Region>eu-north-1</Region></Error>"),
         "storage_wrong_region", "AWS_REGION=eu-north-1"),
        (canned("301 Moved Permanently", "<Error><Code>PermanentRedirect</Code></Error>"),
         "storage_wrong_region", "AWS_REGION"),
        (canned("400 Bad Request", "<Error><Code>InvalidRequest</Code><Message>Content-MD5 OR x-amz-checksum- HTTP "
         "header is required for Put Object requests with Object Lock parameters</Message></Error>"),
         "storage_object_lock", "without default retention"),
    ],
    ids=["region named", "redirect", "object lock"],
)  # fmt: skip
async def test_what_a_put_is_refused_for(bucket: Bucket, answer: bytes, code: str, remedy: str) -> None:
    with FlakyProxy(bucket.s3.endpoint, answer=lambda method, _: answer if method == "PUT" else None) as proxy:
        there = bucket.store(endpoint=proxy.url)
        for call in (there.put_bytes("k", b"x"), there.put_bytes("k", b"x", create=True), there.prove("out")):
            with pytest.raises(StorageFailure) as caught:
                await call
            assert caught.value.stable_code == code and not caught.value.retryable
            assert remedy in caught.value.remedy
