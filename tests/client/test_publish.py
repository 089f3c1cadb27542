"""One location, one batch: claims are exclusive, provenance is last, and what storage gives back is compared."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.s3 import LocalS3, keys_of

from cosmos3_serve.client.publish import Found, Publication, published_uri, verified_manifest
from cosmos3_serve.contract.records import Artifact
from cosmos3_serve.errors import Conflict, IntegrityError
from cosmos3_serve.storage.location import Location, open_store
from cosmos3_serve.storage.store import ObjectInfo, ObjectStore

DATA = b"not really a picture"
ARTIFACT = Artifact(sample="a", path="one/a/vision.jpg", bytes=len(DATA), sha256=hashlib.sha256(DATA).hexdigest())


def body(request_id: str) -> bytes:
    return json.dumps({"request_id": request_id}).encode()


def provenance(request_id: str, **more: Any) -> bytes:
    artifacts = [ARTIFACT.model_dump()] if request_id == "one" else []
    return json.dumps({"request_id": request_id, "artifacts": artifacts, **more}).encode()


@pytest.fixture(params=["s3", "folder"])
def place(request: pytest.FixtureRequest, s3: LocalS3, tmp_path: Path) -> Location:
    if request.param == "folder":
        return open_store(str(tmp_path / "out"))
    s3.create_bucket("publish")
    return open_store(f"s3://publish/{tmp_path.name}")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(DATA)
    return tmp_path / "file"


async def stored(place: Location) -> list[str]:
    skip = len(place.prefix) + 1 if place.prefix else 0
    return [info.key[skip:] async for info in place.store.list(place.prefix)]


async def test_the_way_of_a_publication(place: Location, file: Path) -> None:
    publication = Publication(place, body("one"), "one")
    assert await publication.look() is Found.FREE
    await publication.claim()
    assert await publication.look() is Found.OURS
    assert not await publication.holds(ARTIFACT)
    await publication.put(ARTIFACT, file)
    assert await publication.holds(ARTIFACT)
    assert await verified_manifest(place) is None
    await publication.seal(b"answer", provenance("one"))
    assert await publication.look() is Found.COMPLETE
    manifest = await verified_manifest(place)
    assert manifest is not None and manifest["request_id"] == "one"
    names = ["artifacts/one/a/vision.jpg", "provenance.json", "request.json", "response.json"]
    assert sorted(await stored(place)) == names


async def test_every_step_may_be_repeated(place: Location, file: Path) -> None:
    for _ in range(2):
        publication = Publication(place, body("one"), "one")
        await publication.claim()
        await publication.put(ARTIFACT, file)
        await publication.seal(b"answer", provenance("one"))
    # another process of the same batch measured other times: the first record stands
    await publication.seal(b"answer", provenance("one", phases=2))
    assert await verified_manifest(place) == json.loads(provenance("one"))


async def test_of_many_claims_one_wins(place: Location) -> None:
    claims = [Publication(place, body(str(i)), str(i)).claim() for i in range(8)]
    results = await asyncio.gather(*claims, return_exceptions=True)
    lost = [r for r in results if isinstance(r, Conflict)]
    assert len(lost) == 7
    assert {error.stable_code for error in lost} == {"publication_exists"}
    assert all(r is None for r in results if not isinstance(r, Conflict))


@pytest.mark.parametrize("name", ["request.json", "provenance.json"])
@pytest.mark.parametrize("data", [body("other"), b"not json", b"[]"])
async def test_another_batch_is_never_overwritten(place: Location, name: str, data: bytes) -> None:
    await place.store.put_bytes(place.key(name), data)
    publication = Publication(place, body("one"), "one")
    with pytest.raises(Conflict):
        await publication.look()
    with pytest.raises(Conflict):
        await (publication.claim() if name == "request.json" else publication.seal(b"answer", provenance("one")))
    assert b"".join([chunk async for chunk in place.store.get_stream(place.key(name))]) == data


class Recording(ObjectStore):
    """Passes everything on; remembers what was written, and may lie on the way back."""

    def __init__(self, inner: ObjectStore, lie_about: str = "") -> None:
        self.inner, self.lie_about, self.written = inner, lie_about, list[tuple[str, bool]]()

    async def head(self, key: str) -> ObjectInfo | None:
        return await self.inner.head(key)

    async def get_stream(
        self, key: str, *, start: int = 0, chunk_size: int = 1024, max_bytes: int | None = None
    ) -> AsyncIterator[bytes]:
        async for chunk in self.inner.get_stream(key, start=start, chunk_size=chunk_size, max_bytes=max_bytes):
            yield b"4\r\n" + chunk if self.lie_about and key.endswith(self.lie_about) else chunk

    async def put_bytes(self, key: str, data: bytes, *, create: bool = False) -> ObjectInfo:
        self.written.append((key, create))
        return await self.inner.put_bytes(key, data, create=create)

    async def get_bytes(self, key: str, *, max_bytes: int) -> tuple[ObjectInfo, bytes] | None:
        return await self.inner.get_bytes(key, max_bytes=max_bytes)

    async def swap(self, key: str, data: bytes, expected: ObjectInfo) -> ObjectInfo:
        self.written.append((key, True))
        return await self.inner.swap(key, data, expected)

    async def put_file(self, key: str, path: Path) -> ObjectInfo:
        self.written.append((key, False))
        return await self.inner.put_file(key, path)

    def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        return self.inner.list(prefix)

    async def delete(self, key: str) -> None:
        raise AssertionError("a publication deletes nothing")

    async def check(self) -> None:
        await self.inner.check()


async def test_provenance_is_last_and_conditional(tmp_path: Path, file: Path) -> None:
    store = Recording(open_store(str(tmp_path / "out")).store)
    publication = Publication(Location(store, "", "out/"), body("one"), "one")
    await publication.claim()
    await publication.put(ARTIFACT, file)
    await publication.seal(b"answer", provenance("one"))
    assert store.written == [
        ("request.json", True),
        ("artifacts/one/a/vision.jpg", False),
        ("response.json", False),
        ("provenance.json", True),
    ]


@pytest.mark.parametrize("name", ["vision.jpg", "response.json"])
async def test_a_store_that_keeps_other_bytes_is_found_out(tmp_path: Path, file: Path, name: str) -> None:
    """As some stores did with checksum framing that they did not understand."""
    store = Recording(open_store(str(tmp_path / "out")).store, lie_about=name)
    publication = Publication(Location(store, "", "out/"), body("one"), "one")
    await publication.claim()
    with pytest.raises(IntegrityError, match="other bytes"):
        await publication.put(ARTIFACT, file)
        await publication.seal(b"answer", provenance("one"))
    assert await publication.look() is Found.OURS


@pytest.mark.parametrize(
    ("given", "uri"),
    [("s3://b/out", "s3://b/out/"), ("s3://b/out/", "s3://b/out/"), ("s3://b", "s3://b/"), ("/data/out", "/data/out")],
)
def test_published_uri(given: str, uri: str) -> None:
    assert published_uri(given) == uri


async def test_an_object_beside_the_place_is_not_the_place(s3: LocalS3, tmp_path: Path) -> None:
    s3.create_bucket("beside")
    near, far = open_store("s3://beside/out"), open_store("s3://beside/out2")
    await Publication(far, body("two"), "two").claim()
    publication = Publication(near, body("one"), "one")
    assert await publication.look() is Found.FREE
    await publication.claim()
    assert keys_of(s3.environ, "beside") == ["out/request.json", "out2/request.json"]
