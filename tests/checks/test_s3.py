"""`s3` against a real S3 API server: what works is proven, what does not is named, and nothing is left behind."""

import asyncio
from typing import Any

import pytest
from support.flaky import Fault, FlakyProxy
from support.s3 import LocalS3, boto, keys_of

from cosmos3_serve.checks.report import Row
from cosmos3_serve.checks.s3 import check_s3, prove_storage
from cosmos3_serve.errors import StorageFailure
from cosmos3_serve.storage.directory import DirectoryStore


async def check(environ: dict[str, str], location: str = "", *, offline: bool = False, timeout_s: float = 20) -> Row:
    return await check_s3(environ, offline=offline, timeout_s=timeout_s, location=location)


@pytest.mark.parametrize("form", ["{}", "s3://{}", "s3://{}/a%20b/c/"])
async def test_a_bucket_that_works_passes_and_is_as_before(s3_server: LocalS3, bucket: str, form: str) -> None:
    row = await check(s3_server.environ, form.format(bucket))
    assert row.status == "PASS", row
    assert [d.partition(":")[0] for d in row.details] == ["put", "read back", "conditional put", "list", "delete"]
    assert keys_of(s3_server.environ, bucket) == []
    assert bucket not in str(row) and s3_server.environ["AWS_SECRET_ACCESS_KEY"] not in str(row)


async def test_the_variable_names_the_bucket(s3_server: LocalS3, bucket: str) -> None:
    assert (await check({**s3_server.environ, "NPA_S3_BUCKET": bucket})).status == "PASS"


async def test_what_lies_there_already_is_left_alone(s3_server: LocalS3, bucket: str) -> None:
    boto(s3_server.environ).put_object(Bucket=bucket, Key="mine/probe.bin", Body=b"x")
    assert (await check(s3_server.environ, f"s3://{bucket}/mine")).status == "PASS"
    assert keys_of(s3_server.environ, bucket) == ["mine/probe.bin"]


@pytest.mark.parametrize("missing", ["AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "NPA_S3_BUCKET"])
async def test_what_is_not_configured_fails_with_its_name(s3_server: LocalS3, missing: str) -> None:
    environ = {**s3_server.environ, "NPA_S3_BUCKET": "b"}
    del environ[missing]
    row = await check(environ)
    assert row.status == "FAIL" and missing in row.summary and missing in row.remedy


@pytest.mark.parametrize("location", ["s3://", "s3://UPPER_case/../x", "s3://b/../x"])
async def test_a_malformed_location_fails(s3_server: LocalS3, location: str) -> None:
    assert (await check(s3_server.environ, location)).status == "FAIL"


async def test_offline_asks_nobody(s3_server: LocalS3) -> None:
    row = await check({**s3_server.environ, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "b", offline=True)
    assert row.status == "SKIP"


async def test_a_bucket_that_is_not_there_and_keys_that_are_wrong_fail(s3_server: LocalS3) -> None:
    row = await check(s3_server.environ, "no-such-bucket-here")
    assert row.status == "FAIL" and row.summary.startswith("at the first put") and row.remedy


async def test_no_storage_at_all_fails_within_bounds(s3_server: LocalS3) -> None:
    environ = {**s3_server.environ, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    row = await asyncio.wait_for(check(environ, "b", timeout_s=3), 15)
    assert row.status == "FAIL"
    assert "left" in " ".join(row.details), "what cannot be cleaned is said"


async def test_a_storage_that_hangs_is_given_up(
    s3_server: LocalS3, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cosmos3_serve.checks.s3.CLEANUP_S", 1.0)
    with FlakyProxy(s3_server.endpoint, lambda method, target, nth: Fault.DELAY, delay_s=30.0) as proxy:
        environ = {**s3_server.environ, "AWS_ENDPOINT_URL": proxy.url}
        row = await asyncio.wait_for(check(environ, bucket, timeout_s=1), 25)
    assert row.status == "FAIL" and "1 s" in row.summary


class Overwriting(DirectoryStore):
    """A double of a storage that ignores If-None-Match: every conditional put wins."""

    async def put_bytes(self, key: str, data: bytes, *, create: bool = False) -> Any:
        return await super().put_bytes(key, data, create=False)


class Altering(DirectoryStore):
    """A double of a storage that keeps something else than what was put (a checksum in the body, say)."""

    async def put_bytes(self, key: str, data: bytes, *, create: bool = False) -> Any:
        return await super().put_bytes(key, data + b"\r\n0\r\n", create=create)


class Blind(DirectoryStore):
    """A double of a storage whose list lags behind."""

    async def list(self, prefix: str = "") -> Any:
        for nothing in ():
            yield nothing


class Keeping(DirectoryStore):
    """A double of a storage that may not delete."""

    async def delete(self, key: str) -> None:
        raise StorageFailure("AccessDenied", code="storage_denied")


@pytest.mark.parametrize(
    ("kind", "after", "text"),
    [
        (Overwriting, "read back", "overwritten"),
        (Altering, "put", "not what was put"),
        (Blind, "conditional put", "list"),
        (Keeping, "list", "AccessDenied"),
    ],
)
async def test_a_storage_that_does_not_keep_its_promises_fails_by_name(
    kind: type[DirectoryStore], after: str, text: str, tmp_path: Any
) -> None:
    row = await prove_storage(kind(tmp_path), "here", timeout_s=10)
    assert row.status == "FAIL" and row.summary.startswith(f"after {after}:") and text in row.summary
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert bool(left) is (kind is Keeping)
    assert any("may be left" in detail for detail in row.details) is (kind is Keeping)


async def test_a_directory_passes_too_so_the_doubles_fail_for_their_own_fault(tmp_path: Any) -> None:
    assert (await prove_storage(DirectoryStore(tmp_path), "here", timeout_s=10)).status == "PASS"
