"""A large object is read back in several places at once, and hashed in order: one version, every byte."""

from __future__ import annotations

import asyncio
import hashlib
import os
from typing import TYPE_CHECKING, Any

import pytest
from support.flaky import Fault, FlakyProxy
from support.s3 import boto

from cosmos3_serve.errors import StorageFailure
from cosmos3_serve.storage import reading
from cosmos3_serve.storage.pace import RANGES
from cosmos3_serve.storage.reading import RANGE_BYTES

if TYPE_CHECKING:
    from conftest import Bucket  # type: ignore[import-not-found]

DATA = os.urandom(5 * RANGE_BYTES + 12_345)
SUM = (len(DATA), hashlib.sha256(DATA).hexdigest())


def put(bucket: Bucket, data: bytes = DATA) -> None:
    boto(bucket.environ).put_object(Bucket=bucket.name, Key="k", Body=data)


@pytest.mark.parametrize("fault", [None, Fault.LAST_BYTE, Fault.CUT, Fault.ERROR_503])
async def test_every_byte_is_read_whatever_breaks(bucket: Bucket, fault: Fault | None) -> None:
    put(bucket)
    with FlakyProxy(bucket.s3.endpoint, lambda method, target, nth: fault if nth % 2 == 0 else None) as proxy:
        store = bucket.store(endpoint=proxy.url)
        assert await store.read_back("k", len(DATA)) == SUM
        assert len(proxy.seen) >= 6 and (fault is None or proxy.faults >= 3)
        assert not store.pace.ranges.locked() and store.pace.ranges._value == RANGES


async def test_an_object_replaced_while_it_is_read_is_never_mixed(bucket: Bucket) -> None:
    put(bucket)
    other = os.urandom(len(DATA))
    plan = lambda method, target, nth: Fault.CARRIED_OUT if nth == 0 else None  # noqa: E731
    with FlakyProxy(bucket.s3.endpoint, plan, carried_out=lambda: put(bucket, other)) as proxy:
        store = bucket.store(endpoint=proxy.url)
        with pytest.raises(StorageFailure) as caught:
            await store.read_back("k", len(DATA))
        assert caught.value.stable_code == "object_changed"
        assert store.pace.ranges._value == RANGES
    assert await bucket.store().read_back("k", len(DATA)) == (len(DATA), hashlib.sha256(other).hexdigest())


@pytest.mark.parametrize("size", [0, 1, RANGE_BYTES, RANGE_BYTES + 1])
async def test_an_object_of_another_size_than_expected_is_told_as_it_is(bucket: Bucket, size: int) -> None:
    put(bucket, DATA[:size])
    assert await bucket.store().read_back("k", len(DATA)) == (size, hashlib.sha256(DATA[:size]).hexdigest())


async def test_a_store_that_ignores_ranges_is_read_from_start_to_end(bucket: Bucket) -> None:
    put(bucket)
    with FlakyProxy(bucket.s3.endpoint, strip="Range") as proxy:
        assert await bucket.store(endpoint=proxy.url).read_back("k", len(DATA)) == SUM


async def test_a_changed_last_byte_is_seen(bucket: Bucket) -> None:
    put(bucket, DATA[:-1] + bytes([DATA[-1] ^ 1]))
    size, digest = await bucket.store().read_back("k", len(DATA))
    assert size == len(DATA) and digest != SUM[1]


async def test_ranges_are_asked_for_together(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bucket)
    now, most, open_at = 0, 0, reading.open_at

    async def counted(*args: Any) -> Any:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.05)
        now -= 1
        return await open_at(*args)

    monkeypatch.setattr(reading, "open_at", counted)
    store = bucket.store()
    assert await asyncio.gather(*(store.read_back("k", len(DATA)) for _ in range(4))) == [SUM] * 4
    assert 4 < most <= RANGES
