"""The verifier: every declared object is compared, whatever the record's shape, and nothing else is asked."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from support.memory_store import Bucket, MemoryStore

from cosmos3_serve.errors import IntegrityError, NotFound, StorageFailure
from cosmos3_serve.publication import verify
from cosmos3_serve.publication.layout import is_bookkeeping, published_uri
from cosmos3_serve.publication.verify import declared, differences, read_bytes, read_json, verified_manifest
from cosmos3_serve.storage.location import Location, open_store


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


FILES = {
    "request.json": b"{}",
    "response.json": b"answer",
    "artifacts/r/a/vision.jpg": b"picture",
    "native/r/a/sample_args.json": b"args",
}
RECORD: dict[str, Any] = {
    "request_sha256": sha(b"{}"),
    "response_sha256": sha(b"answer"),
    "artifacts": [{"path": "r/a/vision.jpg", "bytes": 7, "sha256": sha(b"picture")}],
    "recovery": {
        "natives": [
            {"role": "args", "path": "r/a/sample_args.json", "bytes": 4, "sha256": sha(b"args")},
            {"role": "artifact", "path": "r/a/vision.jpg", "bytes": 7, "sha256": sha(b"picture")},
        ]
    },
}


@pytest.fixture
def place() -> Location:
    bucket = Bucket()
    for name, data in FILES.items():
        bucket.put(f"out/{name}", data)
    bucket.put("out/provenance.json", json.dumps(RECORD).encode())
    return Location(MemoryStore(bucket, 1), "out", "s3://b/out/")


def objects(place: Location) -> Bucket:
    assert isinstance(place.store, MemoryStore)
    return place.store.bucket


async def test_what_is_declared_is_there(place: Location) -> None:
    assert [item.name for item in declared(RECORD)] == list(FILES)
    assert await differences(place, RECORD) == []
    assert await verified_manifest(place) == RECORD


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["missing", "size_differs", "sha256_differs"])
async def test_each_difference_is_named(place: Location, name: str, how: str) -> None:
    if how == "missing":
        del objects(place).objects[f"out/{name}"]
    else:
        longer = b"x" if how == "size_differs" else b""
        objects(place).put(f"out/{name}", FILES[name][:-1] + b"?" + longer)
    (fault,) = await differences(place, RECORD)
    sized = name not in ("request.json", "response.json")
    assert (fault.name, fault.code) == (name, how if sized or how == "missing" else "sha256_differs")
    with pytest.raises(IntegrityError, match=name) as caught:
        await verified_manifest(place)
    assert caught.value.stable_code == "publication_damaged"


@pytest.mark.parametrize(
    "change",
    [
        {"request_sha256": 5},
        {"artifacts": "none"},
        {"artifacts": [1]},
        {"artifacts": [{"path": "x", "bytes": True, "sha256": "y"}]},
        {"artifacts": [{"path": "x", "bytes": 1}]},
        {"recovery": []} | {"recovery": [1]},
    ],
)
async def test_a_record_of_another_shape_is_a_fault_and_no_crash(place: Location, change: dict[str, Any]) -> None:
    (fault,) = await differences(place, RECORD | change)
    assert (fault.name, fault.code) == ("provenance.json", "invalid_record")


async def test_a_bucket_that_is_gone_is_not_a_missing_object(place: Location) -> None:
    async def gone(key: str) -> tuple[int, str]:
        raise NotFound("there is no such bucket", code="bucket_not_found")

    with pytest.raises(NotFound):
        await differences(place, RECORD, read=gone)


async def test_reading_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = open_store(str(tmp_path))
    assert await read_json(place, "provenance.json") is None
    assert await verified_manifest(place) is None
    for data, read in ((b"", None), (b"[]", {}), (b"{", {}), (b"[" * 100_000, {}), (b'{"a": 1}', {"a": 1})):
        (tmp_path / "provenance.json").write_bytes(data)
        assert await read_json(place, "provenance.json") == read
        assert await read_bytes(place, "provenance.json") == data
    monkeypatch.setattr(verify, "MAX_RECORD_BYTES", 4)
    with pytest.raises(StorageFailure) as caught:
        await read_bytes(place, "provenance.json")
    assert caught.value.stable_code == "record_too_large"


@pytest.mark.parametrize(
    ("given", "uri"),
    [("s3://b/out", "s3://b/out/"), ("s3://b/out/", "s3://b/out/"), ("s3://b", "s3://b/"), ("/data/out", "/data/out")],
)
def test_published_uri(given: str, uri: str) -> None:
    assert published_uri(given) == uri


def test_claims_and_probes_are_no_part_of_a_publication() -> None:
    assert is_bookkeeping(".cosmos3-claims/0001.json") and is_bookkeeping(".cosmos3-probes/probe-1")
    assert not is_bookkeeping("artifacts/.cosmos3-claims/x") and not is_bookkeeping("request.json")
