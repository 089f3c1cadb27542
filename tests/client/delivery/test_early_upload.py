"""Large files are uploaded while they are downloaded; what turns out wrong at the last byte never shows at its key."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.baseline_server import BaselineServer, Faults
from support.flaky import Fault, FlakyProxy
from support.ledger_server import LedgerServer
from support.s3 import LocalS3, boto, keys_of

from cosmos3_serve.client.submit import Order, submit_batch, submit_batch_async
from cosmos3_serve.errors import Cosmos3RayServeError, IntegrityError
from cosmos3_serve.publication.audit import audit_place
from cosmos3_serve.storage.location import open_store

SIZE = 20_000_000
SAMPLES = [
    {"name": "big", "prompt": "p", "num_frames": 5, "resolution": "256"},
    {"name": "small", "prompt": "p", "num_frames": 1, "resolution": "256"},
]
_numbers = itertools.count()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BaselineServer]:
    with BaselineServer(tmp_path / "server", faults=Faults(), padding={"vision.mp4": SIZE}) as made:
        yield made


@pytest.fixture
def bucket(s3: LocalS3) -> Iterator[str]:
    name = f"early-{next(_numbers)}"
    s3.create_bucket(name)
    yield name
    for key in keys_of(s3.environ, name):  # the server keeps everything in memory
        boto(s3.environ).delete_object(Bucket=name, Key=key)


@pytest.fixture
def options(tmp_path: Path, server: BaselineServer, bucket: str) -> dict[str, Any]:
    (tmp_path / "batch.json").write_text(json.dumps(SAMPLES))
    return {
        "input_path": str(tmp_path / "batch.json"),
        "output_path": f"s3://{bucket}/out/",
        "endpoint": server.endpoint,
    }


def begun(server: BaselineServer) -> None:
    """Until a client downloads."""
    end = time.monotonic() + 30
    while not any("artifacts" in path for _, path, _ in server.log):
        assert time.monotonic() < end
        time.sleep(0.01)


def unfinished(s3: LocalS3, bucket: str) -> list[Any]:
    return list(boto(s3.environ).list_multipart_uploads(Bucket=bucket).get("Uploads", []))


async def intact(s3: LocalS3, bucket: str) -> None:
    """By the audit, and by another client of the store."""
    report = await audit_place(open_store(f"s3://{bucket}/out/", s3.environ))
    assert report.status == "completed" and not report.faults
    client = boto(s3.environ)
    manifest = json.loads(client.get_object(Bucket=bucket, Key="out/provenance.json")["Body"].read())
    for item in manifest["artifacts"]:
        body = client.get_object(Bucket=bucket, Key=f"out/artifacts/{item['path']}")["Body"].read()
        assert (len(body), hashlib.sha256(body).hexdigest()) == (item["bytes"], item["sha256"])
    assert unfinished(s3, bucket) == []


async def test_the_upload_begins_while_the_download_goes_on_and_nothing_is_sent_twice(
    s3: LocalS3, server: BaselineServer, bucket: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.faults.chunk_delay_s = 0.005
    before_the_end: list[bool] = []

    def plan(method: str, target: str, nth: int) -> Fault | None:
        if "partNumber=1&" in target or target.endswith("partNumber=1"):
            before_the_end.append(not any(tmp.name == "vision.mp4" for tmp in spool.rglob("*")))
        return None

    spool = Path(os.environ["XDG_STATE_HOME"])
    with FlakyProxy(s3.endpoint, plan) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        submit_batch(**options)
        sent = [(method, "uploads" in target, "partNumber" in target) for method, target, *_ in proxy.seen]
    assert before_the_end == [True]
    assert sent.count(("POST", True, False)) == 1 and sent.count(("PUT", False, True)) == 3
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    await intact(s3, bucket)


def test_a_wrong_last_byte_ends_the_upload_and_leaves_nothing(
    s3: LocalS3, server: BaselineServer, bucket: str, options: dict[str, Any]
) -> None:
    server.faults.flip_bytes = {"vision.mp4": 99}
    with pytest.raises(IntegrityError, match="artifact integrity mismatch"):
        submit_batch(**options)
    assert unfinished(s3, bucket) == []
    assert not [key for key in keys_of(s3.environ, bucket) if ".cosmos3-claims" not in key]


class Garbage(BaselineServer):
    """Declares files that are no media."""

    def generate(self, request_id: str, sample: dict[str, Any]) -> dict[str, Any]:
        result = super().generate(request_id, sample)
        (self.root / request_id / "big" / "vision.mp4").write_bytes(bytes(SIZE))
        return result


async def test_a_file_that_does_not_decode_leaves_nothing_stored_and_nothing_under_way(
    s3: LocalS3, bucket: str, tmp_path: Path, options: dict[str, Any]
) -> None:
    with Garbage(tmp_path / "garbage", padding={"vision.mp4": SIZE}) as server:
        with pytest.raises(IntegrityError) as caught:
            await submit_batch_async(Order(**options | {"endpoint": server.endpoint}))
        assert caught.value.stable_code == "media_invalid"
    assert unfinished(s3, bucket) == []
    assert not [key for key in keys_of(s3.environ, bucket) if ".cosmos3-claims" not in key]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_last_byte_that_is_wrong_once_is_fetched_and_uploaded_anew(
    s3: LocalS3, server: BaselineServer, bucket: str, options: dict[str, Any]
) -> None:
    server.faults.flip_bytes = {"vision.mp4": 1}
    assert submit_batch(**options)["status"] == "completed"
    await intact(s3, bucket)


async def test_a_download_that_is_cut_near_its_end_goes_on_and_so_does_the_upload(
    s3: LocalS3, server: BaselineServer, bucket: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.faults.cut_downloads, server.faults.cut_after = 2, SIZE - 1
    with FlakyProxy(s3.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        submit_batch(**options)
        assert sum(method == "POST" and "uploads" in target for method, target, *_ in proxy.seen) == 1
    assert [value for _, path, value in server.log if path.endswith("mp4") and value], "it was continued by Range"
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    await intact(s3, bucket)


async def test_an_early_upload_that_fails_is_made_up_for(
    s3: LocalS3, bucket: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first completion is lost, after it was carried out: then the object is there, and compared."""
    plan = lambda method, target, nth: (  # noqa: E731
        Fault.LOST_REPLY if method == "POST" and "uploadId" in target and nth < 8 else None
    )
    with FlakyProxy(s3.endpoint, plan) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        submit_batch(**options)
        assert proxy.faults >= 1
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    await intact(s3, bucket)


async def test_bytes_that_the_store_altered_are_never_sealed(
    s3: LocalS3, bucket: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = lambda method, target, nth: Fault.ALTERED if "partNumber=3" in target else None  # noqa: E731
    with FlakyProxy(s3.endpoint, plan) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        with pytest.raises(Cosmos3RayServeError):
            submit_batch(**options)
    assert "out/provenance.json" not in keys_of(s3.environ, bucket)


async def test_two_clients_that_upload_the_same_file_at_once_publish_it_once(
    s3: LocalS3, bucket: str, tmp_path: Path, options: dict[str, Any]
) -> None:
    with LedgerServer(tmp_path / "ledger", padding={"vision.mp4": SIZE}) as ledger:
        body = {"samples": SAMPLES, "request_id": "both"}
        (tmp_path / "batch.json").write_text(json.dumps(body))
        options["endpoint"] = ledger.endpoint
        done: list[Any] = []
        ledger.faults.chunk_delay_s = 0.002

        def run(name: str) -> None:
            try:
                done.append(submit_batch(**options, journal_dir=tmp_path / name, resume=name == "b"))
            except BaseException as error:
                done.append(error)

        first = threading.Thread(target=run, args=("a",))
        first.start()
        begun(ledger)
        second = threading.Thread(target=run, args=("b",))
        second.start()
        first.join(60)
        second.join(60)
    assert [type(item) for item in done] == [dict, dict], done
    assert done[0] == done[1]
    await intact(s3, bucket)
