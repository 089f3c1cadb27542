"""A file that is uploaded while it is written: nothing shows before it is verified, nothing stays of a wrong one."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.flaky import Fault, FlakyProxy
from support.s3 import boto, keys_of

from cosmos3_serve.errors import Conflict, StorageFailure
from cosmos3_serve.storage.directory import DirectoryStore
from cosmos3_serve.storage.growing import Growing, Spoiled

if TYPE_CHECKING:
    from conftest import Bucket  # type: ignore[import-not-found]

MIB = 1024 * 1024
DATA = os.urandom(17 * MIB)  # three parts, the last of one MiB


def uploads(bucket: Bucket) -> list[Any]:
    found: list[Any] = boto(bucket.environ).list_multipart_uploads(Bucket=bucket.name).get("Uploads", [])
    return found


def grown(path: Path, count: int) -> Growing:
    """Written up to `count` bytes."""
    path.write_bytes(DATA[:count])
    growing = Growing(path, len(DATA))
    growing.write(count)
    return growing


async def sent(bucket: Bucket, parts: int) -> None:
    """Until the store has that many parts of its one upload."""
    client = boto(bucket.environ)
    for _ in range(1000):
        for upload in uploads(bucket):
            held = client.list_parts(Bucket=bucket.name, Key=upload["Key"], UploadId=upload["UploadId"])
            if len(held.get("Parts", [])) >= parts:
                return
        await asyncio.sleep(0.01)
    raise AssertionError("the parts were not sent")


async def test_the_last_byte_is_held_back(tmp_path: Path) -> None:
    growing = Growing(tmp_path / "f", 10)
    growing.write(7)
    await growing.reach(7)
    assert not growing.reaches(8)
    growing.write(10)
    assert growing.reaches(9) and not growing.reaches(10)
    waiting = asyncio.create_task(growing.reach(10))
    await asyncio.sleep(0)
    growing.verify()
    await waiting
    growing.spoil()
    with pytest.raises(Spoiled):
        growing.reaches(1)


async def test_parts_go_while_the_rest_is_still_written(bucket: Bucket, tmp_path: Path) -> None:
    store, part = bucket.store(), tmp_path / "f.~part"
    assert store.takes_growing(len(DATA)) and not store.takes_growing(MIB)
    growing = grown(part, 9 * MIB)
    upload = asyncio.create_task(store.put_growing("k", growing, create=True))
    await sent(bucket, 1)
    with part.open("ab") as file:
        file.write(DATA[9 * MIB :])
    growing.write(len(DATA))
    part.rename(tmp_path / "f")  # as a finished download is
    growing.moved(tmp_path / "f")
    await sent(bucket, 2)
    assert keys_of(bucket.environ, bucket.name) == [] and not upload.done()
    growing.verify()
    info = await upload
    assert await store.read_back("k", info.size) == (len(DATA), hashlib.sha256(DATA).hexdigest())
    assert uploads(bucket) == []


@pytest.mark.parametrize("how", ["spoiled", "cancelled", "truncated"])
async def test_what_turns_out_wrong_at_its_last_byte_leaves_nothing(bucket: Bucket, tmp_path: Path, how: str) -> None:
    growing = grown(tmp_path / "f", len(DATA))
    upload = asyncio.create_task(bucket.store().put_growing("k", growing, create=True))
    await sent(bucket, 2)
    if how == "cancelled":
        upload.cancel()
    elif how == "spoiled":
        growing.spoil()
    else:
        os.truncate(tmp_path / "f", 100)
        growing.verify()
    with pytest.raises({"cancelled": asyncio.CancelledError, "spoiled": Spoiled, "truncated": StorageFailure}[how]):
        await upload
    assert uploads(bucket) == [] and keys_of(bucket.environ, bucket.name) == []


async def test_a_key_taken_meanwhile_is_left_alone(bucket: Bucket, tmp_path: Path) -> None:
    store, growing = bucket.store(), grown(tmp_path / "f", len(DATA))
    upload = asyncio.create_task(store.put_growing("k", growing, create=True))
    await sent(bucket, 2)
    await store.put_bytes("k", b"of another client", create=True)
    growing.verify()
    with pytest.raises(Conflict):
        await upload
    assert await store.hash_object("k") == (17, hashlib.sha256(b"of another client").hexdigest())
    assert uploads(bucket) == []


async def test_uploads_that_wait_for_their_files_keep_nobody_out(bucket: Bucket, tmp_path: Path) -> None:
    """What ends their wait may depend on other uploads to the same store."""
    store = bucket.store()
    waiting = [grown(tmp_path / str(number), len(DATA)) for number in range(6)]
    tasks = [asyncio.create_task(store.put_growing(f"k{n}", growing)) for n, growing in enumerate(waiting)]
    async with asyncio.timeout(20):
        while len(uploads(bucket)) < len(tasks):  # noqa: ASYNC110 - the store tells nobody
            await asyncio.sleep(0.05)
        await store.put_bytes("small", b"x", create=True)
        for growing in waiting:
            growing.verify()
        await asyncio.gather(*tasks)
    assert (store.pace.requests, store.pace.bytes) == (0, 0)
    assert len(keys_of(bucket.environ, bucket.name)) == len(tasks) + 1


async def test_a_part_that_fails_for_good_ends_the_upload_without_a_second_try(bucket: Bucket, tmp_path: Path) -> None:
    plan = lambda method, target, nth: Fault.DENIED if "partNumber=2" in target else None  # noqa: E731
    with FlakyProxy(bucket.s3.endpoint, plan) as proxy:
        growing = grown(tmp_path / "f", len(DATA))
        growing.verify()
        with pytest.raises(StorageFailure):
            await bucket.store(endpoint=proxy.url).put_growing("k", growing)
        assert sum(method == "POST" for method, *_ in proxy.seen) == 1
    assert uploads(bucket) == [] and keys_of(bucket.environ, bucket.name) == []


async def test_a_folder_stores_it_once_it_is_whole(tmp_path: Path) -> None:
    store, growing = DirectoryStore(tmp_path / "root"), grown(tmp_path / "f", len(DATA))
    assert not store.takes_growing(len(DATA))
    upload = asyncio.create_task(store.put_growing("k", growing, create=True))
    await asyncio.sleep(0.05)
    assert not (tmp_path / "root").exists()
    growing.verify()
    assert (await upload).size == len(DATA)
