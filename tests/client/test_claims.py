"""Who may publish where: two clients in every order, killed anywhere, and what is sealed is true.

`audit` shares nothing with the client: it looks at the bucket's bytes. A failure names its seed, and `CLAIMS_SEED=n`
runs that one alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.memory_store import Bucket, Killed, MemoryStore

from cosmos3_serve.client.claims import Contested, Entry, Found, Sealed, State, claimed_body, read_log
from cosmos3_serve.client.publish import Publication, outcome_of
from cosmos3_serve.contract.records import Artifact
from cosmos3_serve.errors import Conflict, StorageFailure
from cosmos3_serve.storage.location import Location

SEEDS = range(60)
LONG = range(1000, 2000)


def chosen(seeds: range) -> range:
    one = os.environ.get("CLAIMS_SEED")
    return range(int(one), int(one) + 1) if one else seeds


@contextmanager
def named(seed: int) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(f"CLAIMS_SEED={seed}")
        raise


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass
class Client:
    """One client's part of a publication: what `Submission` and `Recovery` do, without a service."""

    name: str
    request_id: str
    response: bytes | None
    files: dict[str, bytes]
    store: MemoryStore
    gives_up: bool = False
    ended: str = ""
    manifest: dict[str, Any] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        return json.dumps({"request_id": self.request_id}).encode()

    def provenance(self) -> bytes:
        record = {
            "request_id": self.request_id,
            "by": self.name,
            "request_sha256": sha(self.body),
            "response_sha256": "" if self.response is None else sha(self.response),
            "artifacts": [{"path": p, "bytes": len(d), "sha256": sha(d)} for p, d in self.files.items()],
        }
        return json.dumps(record).encode()

    async def run(self, folder: Path) -> None:
        publication = Publication(Location(self.store, "out", "s3://b/out/"), self.body, self.request_id)
        try:
            try:
                self.manifest = await self._publish(publication, folder)
            except Sealed:
                self.manifest = await publication.stored()
            self.ended = "published"
        except Contested:
            self.ended = "contested"
        except Conflict as error:
            assert error.stable_code == "publication_exists"
            self.ended = "taken"
        except Killed:
            self.ended = "killed"

    async def _publish(self, publication: Publication, folder: Path) -> dict[str, Any]:
        if await publication.look() is Found.COMPLETE:
            raise Sealed
        await publication.claim()
        if self.gives_up:
            await publication.release()
            return {}
        hashes = [sha(data) for data in self.files.values()] if self.response is None else []
        await publication.begin(outcome_of(self.response, *hashes), self.response)
        for path, data in self.files.items():
            file = folder / sha(self.name.encode() + data)
            file.write_bytes(data)
            artifact = Artifact(sample=path.split("/")[1], path=path, bytes=len(data), sha256=sha(data))
            await publication.put(artifact, file)
        return await publication.seal(self.provenance())


def audit(bucket: Bucket, clients: list[Client], *, strays: bool = False) -> None:
    objects = {key.removeprefix("out/"): data for key, (data, _) in bucket.objects.items()}
    sealed = objects.get("provenance.json")
    published = [client for client in clients if client.manifest]
    if sealed is None:
        assert not published
        return
    record = json.loads(sealed)
    named = {f"artifacts/{item['path']}": item["sha256"] for item in record["artifacts"]}
    named |= {"request.json": record["request_sha256"]}
    named |= {"response.json": record["response_sha256"]} if record["response_sha256"] else {}
    assert {name: sha(objects[name]) for name in named} == named, "what is sealed is there, unaltered"
    for client in published:
        assert client.manifest == record, "who says published returns what is stored"
        assert client.request_id == record["request_id"]
    if not strays:
        others = {n for n in objects if not n.startswith(".cosmos3-")} - named.keys() - {"provenance.json"}
        assert others == set(), "nothing that the record does not name"


def crowd(seed: int, bucket: Bucket, kinds: str, kill: bool = False) -> list[Client]:
    rng = random.Random(seed)
    made = []
    for number, kind in enumerate(kinds):
        store = MemoryStore(bucket, seed * 97 + number, rng.randrange(1, 30) if kill and rng.random() < 0.6 else None)
        whole = {"one/a/vision.jpg": b"a", "one/x/vision.jpg": b"x"}
        made.append({
            "P": Client("P", "one", b"partial", {"one/a/vision.jpg": b"a"}, store),
            "C": Client("C", "one", b"complete", whole, store),
            "D": Client("D", "one", b"complete", whole, store),
            "R": Client("R", "one", None, {"one/a/vision.jpg": b"recovered"}, store),
            "O": Client("O", "two", b"other", {"two/a/vision.jpg": b"o"}, store),
            "Q": Client("Q", "one", b"complete", {}, store, gives_up=True),
            "G": Client("G", "two", b"other", {}, store, gives_up=True),
        }[kind])  # fmt: skip
    return made


async def in_some_order(seed: int, kinds: str, folder: Path, *, kill: bool) -> tuple[str, ...]:
    """One order; who was killed comes again afterwards."""
    bucket = Bucket()
    clients = crowd(seed, bucket, kinds, kill)
    await asyncio.gather(*(client.run(folder) for client in clients))
    audit(bucket, clients)
    again = [crowd(seed + 1, bucket, client.name)[0] for client in clients if client.ended == "killed"]
    for client in again:
        await client.run(folder)
        audit(bucket, [*clients, client])
    if not kill:
        assert any(client.manifest for client in clients) or clients[0].gives_up, "nobody published"
    return tuple(client.ended for client in clients)


@pytest.mark.parametrize("kinds", ["PC", "CD", "PR", "CO", "GO", "PCO", "GCR", "QCO"])
async def test_in_every_order_what_is_sealed_is_true(kinds: str, tmp_path: Path) -> None:
    ends: set[tuple[str, ...]] = set()
    for seed in chosen(SEEDS):
        with named(seed):
            ends.add(await in_some_order(seed, kinds, tmp_path, kill=False))
            if kinds == "CD":
                assert ends == {("published", "published")}
    assert len(ends) > 1 or kinds in ("CD", "GO") or "CLAIMS_SEED" in os.environ, f"one order only: {ends}"


@pytest.mark.parametrize("kinds", ["PC", "CD", "CO", "PRO"])
async def test_killed_anywhere_nothing_false_is_sealed_and_the_same_batch_goes_on(kinds: str, tmp_path: Path) -> None:
    for seed in chosen(SEEDS):
        with named(seed):
            await in_some_order(seed, kinds, tmp_path, kill=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("kinds", ["PCD", "PRO", "QCRO", "GPCO"])
async def test_many_more_orders(kinds: str, kill: bool, tmp_path: Path) -> None:
    for seed in chosen(LONG):
        with named(seed):
            await in_some_order(seed, kinds, tmp_path, kill=kill)


async def test_a_batch_that_gave_up_leaves_the_place_to_the_next(tmp_path: Path) -> None:
    bucket = Bucket()
    for kind in "GGO":
        (client,) = crowd(1, bucket, kind)
        await client.run(tmp_path)
        assert client.ended == "published"
    assert [key for key in bucket.objects if key.startswith("out/.")] == [], "the log goes once it is sealed"
    late = crowd(1, bucket, "C")[0]
    await late.run(tmp_path)
    assert late.ended == "taken" and not [k for k in bucket.objects if k.startswith("out/.")]


async def test_nothing_is_given_back_once_publishing_began(tmp_path: Path) -> None:
    bucket = Bucket()
    place = Location(MemoryStore(bucket, 1), "", "s3://b/")
    one = Publication(place, b'{"request_id": "one"}', "one")
    assert not await one.release()
    await one.claim()
    assert await claimed_body(place) == b'{"request_id": "one"}'
    await one.begin("x", b"answer")
    assert not await one.release()
    with pytest.raises(Conflict, match="being published by request one"):
        await Publication(place, b'{"request_id": "two"}', "two").claim()
    with pytest.raises(Conflict):  # the same id with another body is another batch
        await Publication(place, b'{"request_id": "one", "samples": []}', "one").look()
    assert [entry.state for entry in await read_log(place)] == [State.CLAIMED, State.PUBLISHING]


async def test_a_place_that_went_to_another_batch_meanwhile_is_not_published_to() -> None:
    place = Location(MemoryStore(Bucket(), 1), "", "s3://b/")
    one, two = (Publication(place, json.dumps({"request_id": name}).encode(), name) for name in ("one", "two"))
    await one.claim()
    await one.release()  # by another client of the batch
    await two.claim()
    with pytest.raises(Conflict, match="claimed by request two"):
        await one.begin("x", b"answer")
    await two.begin("y", b"answer")
    with pytest.raises(Conflict, match="being published by request two"):
        await one.begin("x", b"answer")


async def test_an_entry_that_came_after_the_seal_lets_nobody_write() -> None:
    """CLAIMS_SEED=1277: sealed, the log half removed, an entry by a late client, and a third that reads it."""
    bucket = Bucket()
    place = Location(MemoryStore(bucket, 1), "", "s3://b/")
    one = Publication(place, b'{"request_id": "one"}', "one")
    await one.claim()
    await one.begin("complete", None)
    bucket.put("provenance.json", b'{"request_id": "one"}')
    before = set(bucket.objects)
    with pytest.raises(Sealed):
        await Publication(place, b'{"request_id": "one"}', "one").begin("complete", b"answer")
    with pytest.raises(Sealed):
        await Publication(place, b'{"request_id": "one"}', "one").begin("partial", b"answer")
    assert set(bucket.objects) == before


async def test_a_log_that_is_none_of_ours_is_named() -> None:
    bucket = Bucket()
    place = Location(MemoryStore(bucket, 1), "", "s3://b/")
    bucket.put(".cosmos3-claims/0001.json", b"{}")
    with pytest.raises(StorageFailure) as caught:
        await Publication(place, b"{}", "one").look()
    assert caught.value.stable_code == "claims_damaged"
    assert Entry(state=State.CLAIMED, request_id="a", request_sha256="b").version == 1
