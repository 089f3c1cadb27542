"""S3 over a bad line: what is retried, resumed, given up, and what it must never do to the bytes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.flaky import Fault, FaultPlan, FlakyProxy
from support.s3 import boto, keys_of

from cosmos3_serve.errors import Conflict, NotFound, StorageFailure
from cosmos3_serve.retry import RetryPolicy
from cosmos3_serve.storage import files
from cosmos3_serve.storage.bucket import BucketStore
from cosmos3_serve.storage.pace import TimeLimits

if TYPE_CHECKING:
    from conftest import Bucket  # type: ignore[import-not-found]

MIB = 1024 * 1024
FAST = RetryPolicy(attempts=5, base_s=0.002, cap_s=0.02, deadline_s=20)
QUICK_LIMITS = TimeLimits(connect_s=5, answer_s=1)


async def read(store: BucketStore, key: str) -> bytes:
    return b"".join([chunk async for chunk in store.get_stream(key)])


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


async def test_an_upload_that_fails_or_is_cancelled_leaves_no_parts_behind(bucket: Bucket, tmp_path: Path) -> None:
    """Parts of an unfinished upload are invisible, and are paid for until somebody removes them."""
    source = tmp_path / "source"
    source.write_bytes(bytes(60 * MIB))
    uploads = lambda: boto(bucket.environ).list_multipart_uploads(Bucket=bucket.name).get("Uploads", [])  # noqa: E731

    plan = lambda method, target, nth: Fault.ERROR_500 if "partNumber=2" in target else None  # noqa: E731
    with FlakyProxy(bucket.s3.endpoint, plan) as proxy, pytest.raises(StorageFailure):
        await bucket.store(endpoint=proxy.url).put_file("k", source)
    assert uploads() == []

    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(method: str, target: str, nth: int) -> Fault | None:
        if "partNumber" not in target:
            return None
        loop.call_soon_threadsafe(started.set)
        return Fault.DELAY

    with FlakyProxy(bucket.s3.endpoint, slow, delay_s=0.3) as proxy:
        task = asyncio.create_task(bucket.store(endpoint=proxy.url).put_file("k", source))
        await started.wait()
        assert len(uploads()) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert "DELETE" in {method for method, *_ in proxy.seen}
    assert uploads() == [] and keys_of(bucket.environ, bucket.name) == []


async def test_an_upload_reads_its_file_off_the_event_loop(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()
    read = files.read_all

    def spy(handle: int, count: int, position: int) -> bytes:
        threads.add(threading.get_ident())
        return read(handle, count, position)

    monkeypatch.setattr(files, "read_all", spy)
    (tmp_path / "source").write_bytes(bytes(20 * MIB))
    await bucket.store().put_file("k", tmp_path / "source")
    assert threads and threading.get_ident() not in threads


async def test_a_file_that_cannot_be_read_is_our_failure_not_the_stores(bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        await bucket.store().put_file("k", tmp_path / "none")
    assert str(tmp_path) not in caught.value.detail


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


@pytest.mark.parametrize("fault", [Fault.ERROR_500, Fault.ERROR_503, Fault.SLOW_DOWN, Fault.REFUSE, Fault.CONFLICT])
async def test_endless_faults_end_after_the_allowed_tries(bucket: Bucket, fault: Fault) -> None:
    with FlakyProxy(bucket.s3.endpoint, lambda *_: fault) as proxy:
        store = bucket.store(endpoint=proxy.url)
        for call in (store.head("k"), store.put_bytes("k", b"x"), read(store, "k"), store.delete("k"), store.check()):
            before = len(proxy.seen)
            with pytest.raises(StorageFailure) as caught:
                await call
            assert caught.value.retryable and caught.value.stable_code == "storage_unavailable"
            assert len(proxy.seen) - before == FAST.attempts


@pytest.mark.parametrize("times", [1, 100])
async def test_an_error_document_with_status_200_is_no_object(bucket: Bucket, times: int) -> None:
    await bucket.store().put_bytes("k", b"mine")
    plan = lambda method, target, nth: Fault.ERROR_200 if nth < times else None  # noqa: E731
    for call in ("stream", "bytes"):
        with FlakyProxy(bucket.s3.endpoint, plan) as proxy:
            store = bucket.store(endpoint=proxy.url)
            reading = read(store, "k") if call == "stream" else store.get_bytes("k", max_bytes=1000)
            if times == 1:
                found = await reading
                assert (found if isinstance(found, bytes) else found and found[1]) == b"mine"
                continue
            with pytest.raises(StorageFailure, match=r"200 with an error .InternalError.") as caught:
                await reading
            assert caught.value.retryable and len(proxy.seen) == FAST.attempts
    stored = b"<Error>an object of ours</Error>"
    await bucket.store().put_bytes("e", stored)
    assert await read(bucket.store(), "e") == stored


async def test_what_is_missing_or_denied_is_asked_once(bucket: Bucket) -> None:
    with FlakyProxy(bucket.s3.endpoint, lambda *_: None) as proxy:
        store = bucket.store(endpoint=proxy.url)
        with pytest.raises(NotFound):
            await read(store, "nothing")
        assert await store.head("nothing") is None
        assert len(proxy.seen) == 2


async def test_the_deadline_ends_a_silent_server(bucket: Bucket) -> None:
    with FlakyProxy(bucket.s3.endpoint, lambda *_: Fault.DELAY, delay_s=60) as proxy:
        policy = RetryPolicy(attempts=100, base_s=0.001, cap_s=0.01, deadline_s=0.3)
        with pytest.raises(StorageFailure) as caught:
            await bucket.store(endpoint=proxy.url, policy=policy, limits=TimeLimits(answer_s=30)).head("k")
        assert caught.value.stable_code == "storage_timeout" and caught.value.retryable


async def test_a_download_has_its_own_deadline(bucket: Bucket, tmp_path: Path) -> None:
    await bucket.store().put_bytes("k", bytes(MIB))
    with FlakyProxy(bucket.s3.endpoint, lambda *_: Fault.STALL, stall_s=60) as proxy:
        store = bucket.store(endpoint=proxy.url, limits=TimeLimits(answer_s=30))
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


@pytest.mark.slow
async def test_a_listing_goes_past_one_page_and_resumes_at_the_last_key(bucket: Bucket) -> None:
    names, client = [f"out/{n:04d}" for n in range(1105)], boto(bucket.environ)
    for name in names:
        client.put_object(Bucket=bucket.name, Key=name, Body=b"")
    plan = lambda method, target, nth: Fault.ERROR_500 if nth == 1 else None  # noqa: E731
    with FlakyProxy(bucket.s3.endpoint, plan) as proxy:
        assert [i.key async for i in bucket.store(endpoint=proxy.url).list("out")] == names
        assert proxy.faults == 1


@pytest.mark.parametrize("hurt", [{0}, {1}, {0, 2}, {1, 3}])
async def test_an_error_document_with_status_200_ends_no_listing(bucket: Bucket, hurt: set[int]) -> None:
    """Pages are requests 0 and 1; what follows the last key is asked for once more."""
    names, client = [f"out/{n:04d}" for n in range(1105)], boto(bucket.environ)
    for name in names:
        client.put_object(Bucket=bucket.name, Key=name, Body=b"")
    plan = lambda method, target, nth: Fault.ERROR_200 if nth in hurt else None  # noqa: E731
    with FlakyProxy(bucket.s3.endpoint, plan) as proxy:
        assert [i.key async for i in bucket.store(endpoint=proxy.url).list("out")] == names
        assert proxy.faults == len(hurt)


async def test_an_empty_prefix_is_said_to_be_empty_twice(bucket: Bucket) -> None:
    with FlakyProxy(bucket.s3.endpoint, lambda method, target, nth: None) as proxy:
        assert [i async for i in bucket.store(endpoint=proxy.url).list("none")] == []
        assert len(proxy.seen) == 2


async def test_a_412_to_a_read_without_a_condition_passes(bucket: Bucket) -> None:
    boto(bucket.environ).put_object(Bucket=bucket.name, Key="record", Body=b"{}")
    plan = lambda method, target, nth: Fault.PRECONDITION if nth < 2 else None  # noqa: E731
    with FlakyProxy(bucket.s3.endpoint, plan) as proxy:
        found = await bucket.store(endpoint=proxy.url).get_bytes("record", max_bytes=10)
        assert found is not None and found[1] == b"{}"
        assert proxy.faults == 2
