"""`s3`: does this storage do what a publication needs? Tried with a scratch object, which is removed again.

Put, read back, a second conditional put that must be refused (a publication that could be overwritten would be none),
list, delete.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Mapping

from cosmos3_serve.checks.report import Row, Status
from cosmos3_serve.errors import Conflict, Cosmos3Error, InputError, ServiceFailure, UsageError
from cosmos3_serve.retry import RetryPolicy
from cosmos3_serve.storage.bucket import BucketStore
from cosmos3_serve.storage.credentials import S3Access
from cosmos3_serve.storage.pace import TimeLimits
from cosmos3_serve.storage.store import ObjectStore
from cosmos3_serve.storage.uri import SCHEME, S3Uri, parse_s3

NAME = "s3"
BUCKET_ENV = "NPA_S3_BUCKET"
PAYLOAD_BYTES = 64 * 1024
CLEANUP_S = 10.0
POLICY = RetryPolicy(attempts=2, base_s=0.2, cap_s=1.0, deadline_s=20.0)
LIMITS = TimeLimits(connect_s=5.0, answer_s=10.0)


async def check_s3(environ: Mapping[str, str], *, offline: bool, timeout_s: float, location: str = "") -> Row:
    """FAIL where something is not configured or the storage does not do what it should, else PASS.

    Args:
        location: `s3://bucket[/prefix]`, or a bucket's bare name; empty: `NPA_S3_BUCKET`.
    """
    try:
        access = S3Access.from_environ(environ)
        place = _place(location.strip() or environ.get(BUCKET_ENV, "").strip())
    except InputError as error:
        return Row(NAME, Status.FAIL, error.detail, error.remedy)
    if offline:
        return Row(NAME, Status.SKIP, "S3 is configured; the storage was not asked (--offline)")
    return await prove_storage(BucketStore(place.bucket, access, POLICY, LIMITS), place.key, timeout_s=timeout_s)


def _place(text: str) -> S3Uri:
    if not text:
        raise UsageError(
            f"no bucket is named: {BUCKET_ENV} is not set",
            remedy=f"set {BUCKET_ENV} to the bucket of the outputs, or give --s3-uri s3://bucket/prefix/",
            code="s3_not_configured",
        )
    return parse_s3(text if text.lower().startswith(SCHEME) else f"{SCHEME}{text}")


async def prove_storage(store: ObjectStore, prefix: str, *, timeout_s: float) -> Row:
    """Try a scratch object below `prefix`, within `timeout_s` seconds; afterwards it is gone, or the row names it."""
    folder = "/".join(filter(None, (prefix, f"cosmos3-preflight-{secrets.token_hex(8)}")))
    key, done = f"{folder}/probe.bin", list[str]()
    try:
        async with asyncio.timeout(timeout_s):
            await _steps(store, folder, key, done)
    except TimeoutError:
        row = _failed(done, f"it took longer than {timeout_s:g} s", "check the endpoint and the network")
    except Cosmos3Error as error:
        row = _failed(done, error.detail, error.remedy or "check the endpoint, the keys and what they may do")
    else:
        row = Row(NAME, Status.PASS, "put, read back, conditional put, list and delete work", details=tuple(done))
    left = await _clean(store, key)
    if left:
        details = (*row.details, f"a scratch object may be left: {key} ({left})")
        status = Status.WARN if row.status is Status.PASS else row.status
        row = Row(NAME, status, row.summary, row.remedy or "remove the scratch object", details)
    return row


async def _steps(store: ObjectStore, folder: str, key: str, done: list[str]) -> None:
    data = secrets.token_bytes(PAYLOAD_BYTES)
    declared = (len(data), hashlib.sha256(data).hexdigest())
    await store.put_bytes(key, data, create=True)
    done.append("put")
    _same(await store.read_back(key), declared)
    done.append("read back: size and SHA-256 are equal")
    try:
        await store.put_bytes(key, b"a second put, which must not win", create=True)
    except Conflict:
        _same(await store.read_back(key), declared)
    else:
        raise ServiceFailure(
            "a conditional put over an existing object was accepted: a publication could be overwritten",
            remedy="use a storage that honours If-None-Match on PUT",
        )
    done.append("conditional put: the second one was refused, the object is unchanged")
    listed = [(item.key, item.size) async for item in store.list(folder)]
    if listed != [(key, len(data))]:
        raise ServiceFailure("the list of the folder does not show exactly the object that was put")
    done.append("list")
    await store.delete(key)
    if await store.head(key) is not None:
        raise ServiceFailure("the object is still there after it was deleted")
    done.append("delete")


def _same(found: tuple[int, str], declared: tuple[int, str]) -> None:
    if found != declared:
        raise ServiceFailure("what was read back is not what was put")


def _failed(done: list[str], why: str, remedy: str) -> Row:
    after = f"after {done[-1].partition(':')[0]}" if done else "at the first put"
    return Row(NAME, Status.FAIL, f"{after}: {why}", remedy, tuple(done))


async def _clean(store: ObjectStore, key: str) -> str:
    """Remove the scratch object whatever happened before; why that cannot be known, else empty."""
    try:
        async with asyncio.timeout(CLEANUP_S):
            await store.delete(key)
    except TimeoutError:
        return f"no answer within {CLEANUP_S:g} s"
    except Cosmos3Error as error:
        return error.detail
    return ""
