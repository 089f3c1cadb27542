"""One location, one batch: claims are exclusive, provenance is last, and what storage gives back is compared."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.memory_store import Bucket, MemoryStore
from support.s3 import LocalS3, keys_of

from cosmos3_serve.client import publish
from cosmos3_serve.client.publish import Found, Publication, outcome_of
from cosmos3_serve.contract.records import Artifact
from cosmos3_serve.errors import Conflict, ExitCode, IntegrityError, NotFound, StorageFailure, UsageError
from cosmos3_serve.publication.verify import verified_manifest
from cosmos3_serve.storage.location import Location, open_store
from cosmos3_serve.storage.store import ObjectInfo, ObjectStore, Proof

DATA = b"not really a picture"
ARTIFACT = Artifact(sample="a", path="one/a/vision.jpg", bytes=len(DATA), sha256=hashlib.sha256(DATA).hexdigest())


def body(request_id: str) -> bytes:
    return json.dumps({"request_id": request_id}).encode()


def provenance(request_id: str, **more: Any) -> bytes:
    hashes = {"request_sha256": sha(body(request_id)), "response_sha256": sha(b"answer")}
    artifacts = [ARTIFACT.model_dump()] if request_id == "one" else []
    return json.dumps({"request_id": request_id, **hashes, "artifacts": artifacts, **more}).encode()


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


OUTCOME = outcome_of(b"answer")


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
    await publication.prove(["a", "b"])
    await publication.claim()
    assert await publication.look() is Found.OURS
    assert not await publication.holds(ARTIFACT)
    await publication.begin(OUTCOME, b"answer")
    await publication.put(ARTIFACT, file)
    assert await publication.holds(ARTIFACT)
    assert await verified_manifest(place) is None
    assert await publication.seal(provenance("one")) == json.loads(provenance("one"))
    assert await publication.look() is Found.COMPLETE
    manifest = await verified_manifest(place)
    assert manifest is not None and manifest["request_id"] == "one"
    names = ["artifacts/one/a/vision.jpg", "provenance.json", "request.json", "response.json"]
    assert sorted(await stored(place)) == names


async def test_every_step_may_be_repeated(place: Location, file: Path) -> None:
    for _ in range(2):
        publication = Publication(place, body("one"), "one")
        if await publication.look() is not Found.COMPLETE:
            await publication.claim()
        await publication.put_record("request.json", body("one"))
        await publication.put_record("response.json", b"answer")
        await publication.put(ARTIFACT, file)
        await publication.seal(provenance("one"))
    # another process of the same batch measured other times: the first record stands, and is what the caller gets
    assert await publication.seal(provenance("one", phases=2)) == json.loads(provenance("one"))
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
        await publication.claim()
    assert b"".join([chunk async for chunk in place.store.get_stream(place.key(name))]) == data


class Recording(MemoryStore):
    """Remembers what was written, and may lie on the way back."""

    def __init__(self, lie_about: str = "", *, case_sensitive: bool = True) -> None:
        super().__init__(Bucket(), 1)
        self.lie_about, self.case_sensitive = lie_about, case_sensitive
        self.created: list[tuple[str, bool]] = []

    async def get_stream(
        self, key: str, *, start: int = 0, chunk_size: int = 1024, max_bytes: int | None = None
    ) -> AsyncIterator[bytes]:
        async for chunk in super().get_stream(key, start=start, max_bytes=max_bytes):
            yield b"4\r\n" + chunk if self.lie_about and key.endswith(self.lie_about) else chunk

    async def put_bytes(self, key: str, data: bytes, *, create: bool = False) -> ObjectInfo:
        self.created.append((key, create))
        return await super().put_bytes(key, data, create=create)

    async def prove(self, prefix: str = "", *, swap: bool = False) -> Proof:
        return Proof(case_sensitive=self.case_sensitive)


async def published(store: ObjectStore, file: Path) -> None:
    publication = Publication(Location(store, "", "out/"), body("one"), "one")
    await publication.claim()
    await publication.begin(OUTCOME, b"answer")
    await publication.put(ARTIFACT, file)
    await publication.seal(provenance("one"))


async def test_provenance_is_last_and_everything_is_created_only_if_free(file: Path) -> None:
    store = Recording()
    await published(store, file)
    assert store.created == [
        (".cosmos3-claims/0001.json", True),
        (".cosmos3-claims/0002.json", True),
        ("request.json", True),
        ("response.json", True),
        ("artifacts/one/a/vision.jpg", True),
        ("provenance.json", True),
    ]
    assert sorted(store.bucket.objects) == sorted(key for key, _ in store.created if not key.startswith("."))


@pytest.mark.parametrize("name", ["vision.jpg", "response.json", "request.json"])
async def test_a_store_that_keeps_other_bytes_is_found_out(file: Path, name: str) -> None:
    """As some stores did with checksum framing that they did not understand."""
    store = Recording(lie_about=name)
    with pytest.raises(IntegrityError, match="other bytes"):
        await published(store, file)
    assert "provenance.json" not in store.bucket.objects


async def test_a_store_that_alters_the_record_itself_is_found_out(file: Path) -> None:
    class Altering(Recording):
        async def put_bytes(self, key: str, data: bytes, *, create: bool = False) -> ObjectInfo:
            return await super().put_bytes(key, b"{}" if key == "provenance.json" else data, create=create)

    with pytest.raises(IntegrityError, match="other bytes") as caught:
        await published(Altering(), file)
    assert caught.value.stable_code == "publication_damaged"


@pytest.mark.parametrize("name", ["request.json", "response.json", "artifacts/one/a/vision.jpg"])
@pytest.mark.parametrize("damage", ["altered", "removed"])
@pytest.mark.parametrize("looked_up", ["each", "listed"])
async def test_what_changes_after_it_was_read_back_is_not_sealed(
    file: Path, name: str, damage: str, looked_up: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "LISTED", 0 if looked_up == "listed" else 16)
    store = Recording()
    publication = Publication(Location(store, "", "out/"), body("one"), "one")
    await publication.claim()
    await publication.begin(OUTCOME, b"answer")
    await publication.put(ARTIFACT, file)
    if damage == "removed":
        del store.bucket.objects[name]
    else:
        store.bucket.put(name, bytes(reversed(store.bucket.objects[name][0])))
    with pytest.raises(IntegrityError, match=name):
        await publication.seal(provenance("one"))
    assert "provenance.json" not in store.bucket.objects


@pytest.mark.parametrize("allowed", [True, False])
async def test_many_versions_are_listed_before_the_seal_where_that_is_allowed(
    file: Path, monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    monkeypatch.setattr(publish, "LISTED", 0)

    class Counting(Recording):
        looked_up = 0

        async def head(self, key: str) -> ObjectInfo | None:
            self.looked_up += "artifacts" in key
            return await super().head(key)

        async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
            if not allowed:
                raise StorageFailure("object storage denied it", code="storage_denied")
            async for info in super().list(prefix):
                yield info

    store = Counting()
    await published(store, file)
    assert "provenance.json" in store.bucket.objects
    assert store.looked_up == (0 if allowed else 1)


async def test_an_artifact_of_others_is_never_overwritten(place: Location, file: Path) -> None:
    await place.store.put_bytes(place.key("artifacts/one/a/vision.jpg"), b"not ours")
    publication = Publication(place, body("one"), "one")
    await publication.claim()
    await publication.begin(OUTCOME, b"answer")
    with pytest.raises(IntegrityError, match="nothing there is overwritten"):
        await publication.put(ARTIFACT, file)
    key = place.key("artifacts/one/a/vision.jpg")
    assert b"".join([chunk async for chunk in place.store.get_stream(key)]) == b"not ours"


async def test_a_request_of_an_older_client_decides_too(place: Location) -> None:
    await place.store.put_bytes(place.key("request.json"), body("one"))
    assert await Publication(place, body("one"), "one").look() is Found.OURS
    await Publication(place, body("one"), "one").claim()
    with pytest.raises(Conflict):
        await Publication(place, body("two"), "two").claim()


async def test_an_empty_provenance_of_a_killed_older_client_is_none(tmp_path: Path, file: Path) -> None:
    """File systems without hard links: it was created, and the client killed before the rename."""
    place = open_store(str(tmp_path / "out"))
    await place.store.put_bytes("provenance.json", b"")
    assert await Publication(place, body("one"), "one").look() is Found.FREE
    await published(place.store, file)
    assert await verified_manifest(place) == json.loads(provenance("one"))


async def test_names_that_a_place_takes_for_one_are_refused_before_anything_is_sent() -> None:
    place = Location(Recording(case_sensitive=False), "", "out/")
    publication = Publication(place, body("one"), "one")
    await publication.prove(["a", "b"])
    with pytest.raises(UsageError, match="'A' and 'a' for one name") as caught:
        await publication.prove(["A", "b", "a"])
    assert caught.value.stable_code == "case_insensitive_location"
    await Publication(Location(Recording(), "", "out/"), body("one"), "one").prove(["A", "a"])


async def test_an_object_that_storage_lost_is_no_fault_of_the_input() -> None:
    class Empty(Recording):
        async def read_back(self, key: str, size: int = 0) -> tuple[int, str]:
            raise NotFound("there is no such object", code="object_not_found")

    publication = Publication(Location(Empty(), "", "out/"), body("one"), "one")
    await publication.claim()
    with pytest.raises(StorageFailure) as caught:
        await publication.begin(OUTCOME, b"answer")
    assert caught.value.exit_code == ExitCode.SERVICE and caught.value.retryable


async def test_an_object_beside_the_place_is_not_the_place(s3: LocalS3, tmp_path: Path) -> None:
    s3.create_bucket("beside")
    near, far = open_store("s3://beside/out"), open_store("s3://beside/out2")
    await Publication(far, body("two"), "two").claim()
    publication = Publication(near, body("one"), "one")
    assert await publication.look() is Found.FREE
    await publication.claim()
    assert keys_of(s3.environ, "beside") == ["out/.cosmos3-claims/0001.json", "out2/.cosmos3-claims/0001.json"]
