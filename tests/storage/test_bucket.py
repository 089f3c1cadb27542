"""What only S3 has: literal key names, plain bodies, and what its errors may say."""

from __future__ import annotations

import asyncio
import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.s3 import boto, keys_of
from support.stub import Stub

from cosmos3_serve.errors import IntegrityError, NotFound, StorageAuthorizationError, StorageFailure
from cosmos3_serve.retry import RetryPolicy
from cosmos3_serve.storage.bucket import BucketStore
from cosmos3_serve.storage.credentials import S3Access
from cosmos3_serve.storage.pace import TimeLimits
from cosmos3_serve.storage.uri import parse_s3, require_object

if TYPE_CHECKING:
    from conftest import Bucket  # type: ignore[import-not-found]

MIB = 1024 * 1024
FAST = RetryPolicy(attempts=5, base_s=0.002, cap_s=0.02, deadline_s=20)
QUICK_LIMITS = TimeLimits(connect_s=5, answer_s=1)
LITERAL = [
    "a b", "a+b", "a%2Fb", "a%20b", "%25", "100%", "a%zz", "é/日本.png", "e\u0301", "a#b", "a?b", "a&b=c;d",
    "~!$'()*,:@",
    "[a]{b}|^`<>\"", " lead", "trail ", "...", "..a", "x.", "😀", "\u200b", "%2e%2e/x", "k" * 1024, "é" * 512,
]  # fmt: skip


async def read(store: BucketStore, key: str) -> bytes:
    return b"".join([chunk async for chunk in store.get_stream(key)])


@pytest.mark.parametrize("key", LITERAL, ids=lambda key: ascii(key)[:20])
async def test_a_key_is_stored_under_its_literal_name(bucket: Bucket, key: str) -> None:
    store = bucket.store()
    await store.put_bytes(key, key.encode())
    assert keys_of(bucket.environ, bucket.name) == [key]
    assert await read(store, key) == key.encode()
    assert [i.key async for i in store.list()] == [key]
    await store.delete(key)
    assert keys_of(bucket.environ, bucket.name) == []


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tail=st.text(st.characters(codec="utf-8"), min_size=1, max_size=30))
def test_any_allowed_input_names_the_object_that_another_client_stored(bucket: Bucket, tail: str) -> None:
    try:
        uri = require_object("s3://b/" + tail)
    except StorageAuthorizationError:
        return
    client = boto(bucket.environ)
    client.put_object(Bucket=bucket.name, Key=uri.key, Body=uri.key.encode())
    assert asyncio.run(read(bucket.store(), uri.key)) == uri.key.encode()
    client.delete_object(Bucket=bucket.name, Key=uri.key)


async def test_an_escaped_slash_in_a_uri_is_a_slash(bucket: Bucket) -> None:
    boto(bucket.environ).put_object(Bucket=bucket.name, Key="a/b.png", Body=b"x")
    assert await read(bucket.store(), parse_s3(f"s3://{bucket.name}/a%2Fb.png").key) == b"x"


async def test_a_listing_with_a_foreign_key_is_a_typed_failure(bucket: Bucket) -> None:
    boto(bucket.environ).put_object(Bucket=bucket.name, Key="out/a//b", Body=b"x")
    with pytest.raises(StorageFailure) as caught:
        [i async for i in bucket.store().list("out")]
    assert caught.value.stable_code == "storage_foreign_key" and not caught.value.retryable


# ---- errors ----------------------------------------------------------------------------------------------------------


async def test_a_missing_bucket_is_told_from_a_missing_object(bucket: Bucket, tmp_path: Path) -> None:
    store = BucketStore("no-such-bucket", S3Access.from_environ(bucket.environ), FAST, QUICK_LIMITS)
    (tmp_path / "f").write_bytes(bytes(9 * MIB))
    for call in (read(store, "k"), store.put_bytes("k", b""), store.put_file("k", tmp_path / "f"), store.check()):
        with pytest.raises(NotFound) as caught:
            await call
        assert caught.value.stable_code == "bucket_not_found"
        assert "no such bucket" in caught.value.detail


async def test_errors_carry_no_credential_and_no_bucket(bucket: Bucket) -> None:
    """The client library's texts hold URL, key id and the server's XML; none of it may reach a log."""
    key_id = bucket.environ["AWS_ACCESS_KEY_ID"]
    body = f"<Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>{key_id}</AWSAccessKeyId></Error>".encode()

    for status, code in (
        (403, "storage_denied"),
        (401, "storage_denied"),
        (301, "storage_wrong_region"),
        (400, "storage_failed"),
    ):
        with Stub(status, body) as (url, seen):
            store = bucket.store(endpoint=url)
            for call in (read(store, "k"), store.put_bytes("k", b"x"), store.check()):
                with pytest.raises(StorageFailure) as caught:
                    await call
                shown = "".join(traceback.format_exception(caught.value))
                assert caught.value.stable_code == code and not caught.value.retryable
                for secret in (*(v for k, v in bucket.environ.items() if "KEY" in k), bucket.name, url, "<Error>"):
                    assert secret not in shown
            assert len(seen) == 3, "not retried"


async def test_an_unreachable_endpoint_is_a_passing_fault(bucket: Bucket) -> None:
    with pytest.raises(StorageFailure) as caught:
        await bucket.store(endpoint="http://127.0.0.1:1").head("k")
    assert caught.value.retryable


async def test_a_key_cannot_pose_as_a_status(bucket: Bucket) -> None:
    with pytest.raises(NotFound) as caught:
        await read(bucket.store(), "x non-2xx status code: 503 <Code>SlowDown</Code>")
    assert caught.value.stable_code == "object_not_found"


# ---- plain bodies ----------------------------------------------------------------------------------------------------


async def test_bodies_are_sent_plain_to_a_store_that_knows_no_trailers(bucket: Bucket) -> None:
    with Stub(200, b"") as (url, seen):
        store = bucket.store(endpoint=url)
        await store.put_bytes("k", b"exactly this")
        await store.put_bytes("k", b"and this", create=True)
    for method, path, headers, body in seen:
        assert (method, path) == ("PUT", f"/{bucket.name}/k"), "path-style"
        assert body in (b"exactly this", b"and this")
        assert "aws-chunked" not in headers.get("content-encoding", "")
        assert not any(name.startswith(("x-amz-trailer", "x-amz-sdk-checksum", "x-amz-checksum")) for name in headers)
        assert headers.get("x-amz-content-sha256", "").lower() != "streaming-unsigned-payload-trailer"
    assert seen[1][2]["if-none-match"] == "*"


async def test_a_stored_multipart_object_holds_the_file_and_nothing_else(bucket: Bucket, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(17 * MIB))
    await bucket.store().put_file("k", source)
    assert boto(bucket.environ).get_object(Bucket=bucket.name, Key="k")["Body"].read() == source.read_bytes()


async def test_an_upload_that_the_store_shortened_is_found(bucket: Bucket, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(9 * MIB))
    store = bucket.store()

    async def shorter(key: str) -> object:
        return await BucketStore.head(store, "short")

    await store.put_bytes("short", b"x")
    store.head = shorter  # type: ignore[assignment,method-assign]
    with pytest.raises(IntegrityError, match="holds 1 bytes"):
        await store.put_file("k", source)


async def test_the_process_environment_does_not_leak_into_a_store(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The S3 library reads AWS_* by itself; what we were given must win."""
    for name, value in {
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1", "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_SESSION_TOKEN": "other", "AWS_ACCESS_KEY_ID": "other", "AWS_SKIP_SIGNATURE": "true",
        "AWS_REGION": "xx-other-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with Stub(200, b"") as (url, seen):
        await bucket.store(endpoint=url).put_bytes("k", b"x")
    headers = seen[0][2]
    assert bucket.environ["AWS_ACCESS_KEY_ID"] in headers["authorization"]
    assert "/us-east-1/s3/" in headers["authorization"]
    assert "x-amz-security-token" not in headers
