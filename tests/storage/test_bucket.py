"""What only S3 has: literal key names, faults on the wire, plain bodies, and what its errors may say."""

from __future__ import annotations

import asyncio
import hashlib
import http.server
import os
import threading
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.flaky import Fault, FaultPlan, FlakyProxy
from support.s3 import boto, keys_of

from cosmos3_serve.errors import Conflict, IntegrityError, NotFound, StorageAuthorizationError, StorageFailure
from cosmos3_serve.storage.bucket import BucketStore
from cosmos3_serve.storage.credentials import S3Access
from cosmos3_serve.storage.retry import RetryPolicy
from cosmos3_serve.storage.uri import parse_s3, require_object

if TYPE_CHECKING:
    from conftest import Bucket  # type: ignore[import-not-found]

MIB = 1024 * 1024
FAST = RetryPolicy(attempts=5, base_s=0.002, cap_s=0.02, deadline_s=20, connect_timeout_s=5, read_timeout_s=1)
LITERAL = [
    "a b", "a+b", "a%2Fb", "a%20b", "%25", "100%", "a%zz", "é/日本.png", "e\u0301", "a#b", "a?b", "a&b=c;d",
    "~!$'()*,:@", "[a]{b}|^`<>\"", " lead", "trail ", "...", "..a", "x.", "😀", "\u200b", "%2e%2e/x", "k" * 1024, "é" * 512,
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


@pytest.mark.slow
async def test_a_listing_goes_past_one_page_and_resumes_at_the_last_key(bucket: Bucket) -> None:
    names, client = [f"out/{n:04d}" for n in range(1105)], boto(bucket.environ)
    for name in names:
        client.put_object(Bucket=bucket.name, Key=name, Body=b"")
    plan = lambda method, target, nth: Fault.ERROR_500 if nth == 1 else None  # noqa: E731
    with FlakyProxy(bucket.s3.endpoint, plan) as proxy:
        assert [i.key async for i in bucket.store(endpoint=proxy.url).list("out")] == names
        assert proxy.faults == 1


# ---- faults on the wire ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
async def test_seeded_faults_change_no_byte(bucket: Bucket, tmp_path: Path, seed: int) -> None:
    with FlakyProxy(bucket.s3.endpoint, FaultPlan(seed, rate=0.5)) as proxy:
        store = bucket.store(endpoint=proxy.url)
        for number in range(6):
            data = os.urandom(100_000 * number)
            key, target = f"run/{number}", tmp_path / str(number)
            await store.put_bytes(key, data, create=True)
            done = await store.download(key, target)
            assert (done.size, done.sha256) == (len(data), hashlib.sha256(data).hexdigest())
            assert target.read_bytes() == data
        assert [i.key async for i in store.list("run")] == [f"run/{n}" for n in range(6)]
        await asyncio.gather(*(store.delete(f"run/{n}") for n in range(6)))
        assert proxy.faults >= 3, "the plan must have hurt something"
    assert keys_of(bucket.environ, bucket.name) == []


async def test_a_multipart_upload_survives_faults_on_its_parts(bucket: Bucket, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(26 * MIB))
    hurt: Counter[str] = Counter()

    def plan(method: str, target: str, nth: int) -> Fault | None:
        hurt[target] += 1
        return (Fault.SLOW_DOWN, Fault.LOST_REPLY)[len(hurt) % 2] if method == "PUT" and hurt[target] == 1 else None

    with FlakyProxy(bucket.s3.endpoint, plan) as proxy:
        store = bucket.store(endpoint=proxy.url)
        await store.put_file("big", source)
        assert proxy.faults >= 4
    assert await bucket.store().hash_object("big") == (26 * MIB, hashlib.sha256(source.read_bytes()).hexdigest())


async def test_a_cut_body_is_resumed_from_where_it_broke(bucket: Bucket) -> None:
    data = os.urandom(4 * MIB)
    await bucket.store().put_bytes("k", data)
    plan = lambda method, target, nth: Fault.CUT if nth < 3 else None  # noqa: E731
    with FlakyProxy(bucket.s3.endpoint, plan) as proxy:
        assert await read(bucket.store(endpoint=proxy.url), "k") == data
        assert len(proxy.seen) == 4


async def test_a_stalled_body_is_given_up_and_resumed(bucket: Bucket) -> None:
    data = os.urandom(MIB)
    await bucket.store().put_bytes("k", data)
    plan = lambda method, target, nth: Fault.STALL if nth == 0 else None  # noqa: E731
    with FlakyProxy(bucket.s3.endpoint, plan, stall_s=30) as proxy:
        assert await read(bucket.store(endpoint=proxy.url, policy=FAST), "k") == data


async def test_an_object_replaced_while_read_is_never_mixed(bucket: Bucket) -> None:
    old, new = os.urandom(4 * MIB), os.urandom(4 * MIB)
    direct = bucket.store()
    await direct.put_bytes("k", old)
    plan = lambda method, target, nth: Fault.CUT if nth == 0 else None  # noqa: E731
    with FlakyProxy(bucket.s3.endpoint, plan) as proxy:
        stream = bucket.store(endpoint=proxy.url).get_stream("k")
        await anext(stream)
        await direct.put_bytes("k", new)
        with pytest.raises(StorageFailure) as caught:
            [chunk async for chunk in stream]
    assert caught.value.stable_code == "object_changed"


@pytest.mark.parametrize("fault", [Fault.ERROR_500, Fault.ERROR_503, Fault.SLOW_DOWN, Fault.REFUSE])
async def test_endless_faults_end_after_the_allowed_tries(bucket: Bucket, fault: Fault) -> None:
    with FlakyProxy(bucket.s3.endpoint, lambda *_: fault) as proxy:
        store = bucket.store(endpoint=proxy.url)
        for call in (store.head("k"), store.put_bytes("k", b"x"), read(store, "k"), store.delete("k"), store.check()):
            before = len(proxy.seen)
            with pytest.raises(StorageFailure) as caught:
                await call
            assert caught.value.retryable and caught.value.stable_code == "storage_unavailable"
            assert len(proxy.seen) - before == FAST.attempts


async def test_what_is_missing_or_denied_is_asked_once(bucket: Bucket) -> None:
    with FlakyProxy(bucket.s3.endpoint, lambda *_: None) as proxy:
        store = bucket.store(endpoint=proxy.url)
        with pytest.raises(NotFound):
            await read(store, "nothing")
        assert await store.head("nothing") is None
        assert len(proxy.seen) == 2


async def test_the_deadline_ends_a_silent_server(bucket: Bucket) -> None:
    with FlakyProxy(bucket.s3.endpoint, lambda *_: Fault.DELAY, delay_s=60) as proxy:
        policy = RetryPolicy(attempts=100, base_s=0.001, cap_s=0.01, deadline_s=0.3, read_timeout_s=30)
        with pytest.raises(StorageFailure) as caught:
            await bucket.store(endpoint=proxy.url, policy=policy).head("k")
        assert caught.value.stable_code == "storage_timeout" and caught.value.retryable


async def test_a_download_has_its_own_deadline(bucket: Bucket, tmp_path: Path) -> None:
    await bucket.store().put_bytes("k", bytes(MIB))
    policy = RetryPolicy(read_timeout_s=30)
    with FlakyProxy(bucket.s3.endpoint, lambda *_: Fault.STALL, stall_s=60) as proxy:
        store = bucket.store(endpoint=proxy.url, policy=policy)
        with pytest.raises(StorageFailure) as caught:
            await store.download("k", tmp_path / "k", timeout_s=0.3)
    assert caught.value.stable_code == "storage_timeout"
    assert "0.3 s" in caught.value.detail
    assert list(tmp_path.iterdir()) == []


async def test_a_create_whose_answer_was_lost_is_not_a_conflict_with_itself(bucket: Bucket) -> None:
    plan = lambda method, target, nth: Fault.LOST_REPLY if (method, nth) == ("PUT", 0) else None  # noqa: E731
    with FlakyProxy(bucket.s3.endpoint, plan) as proxy:
        store = bucket.store(endpoint=proxy.url)
        assert (await store.put_bytes("mine", b"run-1", create=True)).size == 5
        await bucket.store().put_bytes("theirs", b"run-2")
        with pytest.raises(Conflict):  # here the lost answer was a refusal
            await store.put_bytes("theirs", b"run-1", create=True)
        with pytest.raises(Conflict):
            await store.put_bytes("mine", b"run-1", create=True)


# ---- errors ----------------------------------------------------------------------------------------------------------


async def test_a_missing_bucket_is_told_from_a_missing_object(bucket: Bucket, tmp_path: Path) -> None:
    store = BucketStore("no-such-bucket", S3Access.from_environ(bucket.environ), FAST)
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
        (301, "storage_failed"),
        (400, "storage_failed"),
    ):
        with stub(status, body) as (url, seen):
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
    with stub(200, b"") as (url, seen):
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
        "AWS_SESSION_TOKEN": "other", "AWS_ACCESS_KEY_ID": "other", "AWS_SKIP_SIGNATURE": "true", "AWS_REGION": "xx-other-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with stub(200, b"") as (url, seen):
        await bucket.store(endpoint=url).put_bytes("k", b"x")
    headers = seen[0][2]
    assert bucket.environ["AWS_ACCESS_KEY_ID"] in headers["authorization"]
    assert "/us-east-1/s3/" in headers["authorization"]
    assert "x-amz-security-token" not in headers


class stub:
    """An endpoint that answers every request alike and keeps what it was sent."""

    def __init__(self, status: int, body: bytes) -> None:
        seen: list[tuple[str, str, dict[str, str], bytes]] = []

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

    def __enter__(self) -> tuple[str, list[tuple[str, str, dict[str, str], bytes]]]:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_address[1]}", self._seen

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
