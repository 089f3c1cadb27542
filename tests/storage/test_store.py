"""Promises that a bucket and a directory keep alike, over a real S3 server and a real filesystem."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from cosmos3_serve.errors import (
    Conflict,
    LimitExceeded,
    NotFound,
    RangeNotSatisfiable,
    StorageAuthorizationError,
    StorageFailure,
    UsageError,
)
from cosmos3_serve.storage.location import open_object, open_store
from cosmos3_serve.storage.store import CHUNK_BYTES, Downloaded, ObjectStore

MIB = 1024 * 1024
ENVIRON = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}


async def everything(store: ObjectStore, key: str, start: int = 0) -> bytes:
    return b"".join([chunk async for chunk in store.get_stream(key, start=start)])


@pytest.mark.parametrize("size", [0, 1, 1000, CHUNK_BYTES, 3 * CHUNK_BYTES + 17])
async def test_bytes_come_back_as_they_went(store: ObjectStore, size: int) -> None:
    data = os.urandom(size)
    stored = await store.put_bytes("dir/a b+é%20.bin", data)
    assert stored.size == size
    info = await store.head("dir/a b+é%20.bin")
    assert info is not None and info.size == size and info.etag == stored.etag
    assert await everything(store, "dir/a b+é%20.bin") == data
    assert await store.hash_object("dir/a b+é%20.bin") == (size, hashlib.sha256(data).hexdigest())


async def test_a_stream_starts_where_asked(store: ObjectStore) -> None:
    data = os.urandom(2 * CHUNK_BYTES + 5)
    await store.put_bytes("k", data)
    for start in (1, CHUNK_BYTES, len(data) - 1):
        assert await everything(store, "k", start) == data[start:]
    for start in (len(data), len(data) + 1):
        with pytest.raises(RangeNotSatisfiable):
            await everything(store, "k", start)


async def test_chunks_are_bounded(store: ObjectStore) -> None:
    await store.put_bytes("k", bytes(5 * MIB))
    sizes = [len(chunk) async for chunk in store.get_stream("k", chunk_size=MIB)]
    assert sum(sizes) == 5 * MIB
    assert max(sizes) <= 2 * MIB, "about a chunk each, never the whole object"


async def test_a_missing_object(store: ObjectStore, tmp_path: Path) -> None:
    assert await store.head("nothing/here") is None
    await store.delete("nothing/here")
    for call in (everything(store, "nothing"), store.hash_object("nothing"), store.download("nothing", tmp_path / "x")):
        with pytest.raises(NotFound) as caught:
            await call
        assert caught.value.stable_code == "object_not_found"
    assert not list(tmp_path.glob("x")) and not list(tmp_path.glob(".*.part"))


async def test_put_overwrites_and_create_does_not(store: ObjectStore) -> None:
    await store.put_bytes("k", b"first", create=True)
    with pytest.raises(Conflict) as caught:
        await store.put_bytes("k", b"first", create=True)
    assert caught.value.stable_code == "object_exists"
    assert await everything(store, "k") == b"first"
    await store.put_bytes("k", b"second")
    assert await everything(store, "k") == b"second"


async def test_of_many_creators_one_wins(store: ObjectStore) -> None:
    async def create(number: int) -> int | None:
        try:
            await store.put_bytes("lock", b"%d" % number, create=True)
        except Conflict:
            return None
        return number

    winners = [n for n in await asyncio.gather(*(create(n) for n in range(16))) if n is not None]
    assert len(winners) == 1
    assert await everything(store, "lock") == b"%d" % winners[0]


@pytest.mark.parametrize("size", [0, 7, 20 * MIB + 3], ids=["empty", "small", "multipart"])
async def test_a_file_goes_up_and_comes_down(store: ObjectStore, tmp_path: Path, size: int) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(os.urandom(size))
    sha = hashlib.sha256(source.read_bytes()).hexdigest()
    assert (await store.put_file("a/b/file", source)).size == size
    target.write_bytes(b"older")
    assert await store.download("a/b/file", target, max_bytes=size, timeout_s=60) == Downloaded(size, sha)
    assert target.read_bytes() == source.read_bytes()
    assert not list(tmp_path.glob("**/.*.part"))


async def test_a_download_past_its_limit_touches_nothing(store: ObjectStore, tmp_path: Path) -> None:
    await store.put_bytes("k", bytes(1001))
    target = tmp_path / "target"
    target.write_bytes(b"older")
    with pytest.raises(LimitExceeded) as caught:
        await store.download("k", target, max_bytes=1000)
    assert caught.value.stable_code == "object_too_large"
    assert "1001 bytes" in caught.value.detail and "1000" in caught.value.detail
    assert target.read_bytes() == b"older"
    assert not list(tmp_path.glob(".*.part"))


async def test_concurrent_downloads_to_one_path_leave_one_whole_file(store: ObjectStore, tmp_path: Path) -> None:
    one, two = os.urandom(2 * MIB), os.urandom(3 * MIB)
    await asyncio.gather(store.put_bytes("one", one), store.put_bytes("two", two))
    target = tmp_path / "target"
    await asyncio.gather(*(store.download(key, target) for key in ("one", "two") * 4))
    assert target.read_bytes() in (one, two)
    assert not list(tmp_path.glob(".*.part"))


async def test_a_cancelled_download_leaves_nothing(store: ObjectStore, tmp_path: Path) -> None:
    await store.put_bytes("k", bytes(8 * MIB))
    task = asyncio.create_task(store.download("k", tmp_path / "target"))
    while not list(tmp_path.glob(".*.part")) and not task.done():  # noqa: ASYNC110
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not (tmp_path / "target").exists() and not list(tmp_path.glob(".*.part"))


async def test_a_download_into_a_missing_directory_is_a_typed_failure(store: ObjectStore, tmp_path: Path) -> None:
    await store.put_bytes("k", b"x")
    with pytest.raises(StorageFailure, match="cannot write the downloaded file: No such file or directory") as caught:
        await store.download("k", tmp_path / "missing" / "target")
    assert str(tmp_path) not in caught.value.detail


async def test_list_knows_whole_prefix_parts(store: ObjectStore) -> None:
    keys = ["a/1", "a/2/x", "a.b", "ab/1", "c d/é"]
    for key in keys:
        await store.put_bytes(key, key.encode())
    assert [i.key async for i in store.list()] == sorted(keys)
    found = [i async for i in store.list("a")]
    assert [(i.key, i.size) for i in found] == [("a/1", 3), ("a/2/x", 5)]
    assert [i.key async for i in store.list("a/")] == ["a/1", "a/2/x"]
    assert [i.key async for i in store.list("c d")] == ["c d/é"]
    assert [i.key async for i in store.list("none")] == []
    await store.delete("a/1")
    assert [i.key async for i in store.list("a")] == ["a/2/x"]


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/../b", "a\tb", "a\x00b", "a\\b", "x" * 1025])
async def test_a_key_that_would_change_is_refused_by_every_call(store: ObjectStore, key: str, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"x")
    for call in (
        store.head(key), everything(store, key), store.put_bytes(key, b""), store.put_file(key, tmp_path / "source"),
        store.delete(key), store.hash_object(key), store.download(key, tmp_path / "target"),
    ):  # fmt: skip
        with pytest.raises(StorageAuthorizationError) as caught:
            await call
        assert caught.value.stable_code == "invalid_key"


async def test_the_root_of_a_store_can_be_checked(store: ObjectStore) -> None:
    await store.check()


def test_open_store_reads_both_kinds_of_location(tmp_path: Path) -> None:
    bucket = open_store(" s3://Bucket/out put/run ", ENVIRON)
    assert (bucket.prefix, str(bucket), bucket.key("x/y")) == (
        "out put/run",
        "s3://bucket/out put/run/",
        "out put/run/x/y",
    )
    whole = open_store("s3://bucket", ENVIRON)
    assert (whole.prefix, str(whole), whole.key("x")) == ("", "s3://bucket/", "x")
    assert open_store("s3://bucket/", ENVIRON).store is whole.store is bucket.store
    local = open_store(f"{tmp_path}/a/../out/", {})
    assert (local.prefix, str(local), local.key("x")) == ("", f"{tmp_path}/out/", "x")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["", "out", "./out", "~/out", "https://x/y", "file:///x", "gs://b/k"])
def test_open_store_refuses_other_locations(text: str) -> None:
    with pytest.raises(UsageError, match="absolute path"):
        open_store(text, ENVIRON)


async def test_open_object_finds_one_object(tmp_path: Path) -> None:
    store, key = open_object("s3://bucket/in/batch one.json", ENVIRON)
    assert key == "in/batch one.json" and store is open_store("s3://bucket", ENVIRON).store
    (tmp_path / "batch.json").write_bytes(b"{}")
    store, key = open_object(str(tmp_path / "batch.json"), {})
    assert await everything(store, key) == b"{}"
    for text in ("s3://bucket", "s3://bucket/in/", "s3://bucket/in%2520put"):
        with pytest.raises(StorageAuthorizationError):
            open_object(text, ENVIRON)
