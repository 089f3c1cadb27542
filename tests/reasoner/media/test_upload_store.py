"""UploadStore: two gateways, a disk each, one bucket (a real S3 API) or directory; nothing broken is ever served."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import resource
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.flaky import Fault, FlakyProxy
from support.s3 import LocalS3, boto, keys_of

from cosmos3_serve.errors import (
    Conflict,
    IntegrityError,
    LimitExceeded,
    NotFound,
    NotReady,
    StorageFailure,
    UsageError,
)
from cosmos3_serve.reasoner.media.file_record import FileRecord, tenant_key, to_json
from cosmos3_serve.reasoner.media.info import MediaInfo
from cosmos3_serve.reasoner.media.store import MediaStore
from cosmos3_serve.reasoner.media.upload_store import UploadStore, upload_place
from cosmos3_serve.reasoner.media.upload_sweep import GRACE_S, RECOUNT_S, Bounds
from cosmos3_serve.retry import RetryPolicy
from cosmos3_serve.storage.bucket import BucketStore
from cosmos3_serve.storage.credentials import S3Access
from cosmos3_serve.storage.location import Location
from cosmos3_serve.storage.pace import TimeLimits

INFO = MediaInfo("video", "video/mp4", "mp4", "h264", "yuv420p", 160, 96, 24, 12.0, 2.0, 5, replica_frames=24)
QUICK = RetryPolicy(attempts=3, base_s=0.002, cap_s=0.02, deadline_s=20)
QUICK_LIMITS = TimeLimits(connect_s=2, answer_s=20)
WIDE = Bounds(max_bytes=10**9, max_tenant_bytes=10**8)
_numbers = itertools.count()


@pytest.fixture
def s3(s3_server: LocalS3) -> LocalS3:
    return s3_server


class Fleet:
    """One bucket, and gateways of their own disks."""

    def __init__(self, s3: LocalS3, root: Path) -> None:
        self.s3, self.root = s3, root
        self.bucket = f"media-{next(_numbers)}"
        s3.create_bucket(self.bucket)
        self.now = 0.0  # seconds that the gateways' clocks are ahead

    def gateway(self, name: str, *, endpoint: str = "", bounds: Bounds = WIDE, disk: int = 10**8) -> UploadStore:
        environ = {**self.s3.environ, "AWS_ENDPOINT_URL": endpoint or self.s3.endpoint}
        bucket = BucketStore(self.bucket, S3Access.from_environ(environ), QUICK, QUICK_LIMITS)
        store = MediaStore(self.root / name, max_bytes=disk)
        store.open()
        return UploadStore(Location(bucket, "m", "m/"), store, bounds, clock=lambda: time.time() + self.now)

    def stored(self, kind: str = "") -> list[str]:
        return keys_of(self.s3.environ, self.bucket, f"m/{kind}")

    def overwrite(self, key: str, data: bytes) -> None:
        boto(self.s3.environ).put_object(Bucket=self.bucket, Key=key, Body=data)

    def remove(self, key: str) -> None:
        boto(self.s3.environ).delete_object(Bucket=self.bucket, Key=key)


@pytest.fixture
def fleet(s3: LocalS3, tmp_path: Path) -> Fleet:
    return Fleet(s3, tmp_path)


async def upload(shelf: UploadStore, data: bytes = b"bytes", tenant: str = "t", name: str = "a.mp4") -> FileRecord:
    with shelf._store.put(data) as blob:
        return await shelf.create(tenant, blob, filename=name, purpose="vision", media=INFO)


async def content(shelf: UploadStore, file_id: str, tenant: str = "t") -> bytes:
    _, blob = await shelf.pin(tenant, file_id)
    with blob:
        return blob.read()


async def missing(shelf: UploadStore, file_id: str, tenant: str = "t") -> bool:
    for call in (shelf.get, shelf.pin):
        with pytest.raises(NotFound) as caught:
            await call(tenant, file_id)
        assert caught.value.stable_code == "file_not_found"
    return True


async def test_what_one_gateway_takes_the_other_serves_lists_and_deletes(fleet: Fleet) -> None:
    a, b = fleet.gateway("a"), fleet.gateway("b")
    await a.open()
    data = os.urandom(9_000_000)  # more than one part
    record = await upload(a, data, name="C:\\dir\\clip.mp4")
    assert record.filename == "clip.mp4" and record.sha256 == hashlib.sha256(data).hexdigest()
    assert await b.get("t", record.id) == record
    assert [r.id for r in await b.list("t")] == [record.id]
    assert await content(b, record.id) == data
    assert b._store.pin(record.sha256) is not None, "kept on its own disk from now on"
    await b.delete("t", record.id)
    assert await missing(a, record.id) and await a.list("t") == []
    assert fleet.stored() == []


async def test_another_tenants_id_is_no_file(fleet: Fleet) -> None:
    a, b = fleet.gateway("a"), fleet.gateway("b")
    record = await upload(a, tenant="../mine")
    for shelf in (a, b):
        assert await missing(shelf, record.id, "theirs")
        assert await shelf.list("theirs") == []
        with pytest.raises(NotFound):
            await shelf.delete("theirs", record.id)
    for strange in ("", "file-", "../../x", "file-" + "g" * 32, "file-" + "0" * 32):
        assert await missing(b, strange, "../mine")
    assert await content(b, record.id, "../mine") == b"bytes"
    assert not any("mine" in key for key in fleet.stored()), "a tenant's name is nobody's business"


@pytest.mark.parametrize("change", ["other bytes", "cut", "longer", "empty"])
async def test_a_content_with_another_hash_is_refused_and_never_served(fleet: Fleet, change: str) -> None:
    a, b = fleet.gateway("a"), fleet.gateway("b")
    record = await upload(a, b"0123456789")
    bad = {"other bytes": b"0123456780", "cut": b"01234", "longer": b"0123456789x", "empty": b""}[change]
    (key,) = fleet.stored("contents")
    fleet.overwrite(key, bad)
    for _ in range(2):
        with pytest.raises(StorageFailure) as caught:
            await b.pin("t", record.id)
        assert caught.value.stable_code == "media_content_corrupt" and caught.value.status == 502
    assert len(b._store) == 0 and b._store.used_bytes == 0
    assert await content(a, record.id) == b"0123456789", "the gateway that took it has it still"


async def test_a_missing_content_is_said_to_be_gone(fleet: Fleet) -> None:
    a, b = fleet.gateway("a"), fleet.gateway("b")
    record = await upload(a)
    (key,) = fleet.stored("contents")
    fleet.remove(key)
    with pytest.raises(NotFound, match="content is gone") as caught:
        await b.pin("t", record.id)
    assert caught.value.stable_code == "file_not_found" and "upload it again" in caught.value.remedy


async def test_a_record_that_cannot_be_read_is_no_file_and_hides_no_other(fleet: Fleet) -> None:
    a = fleet.gateway("a")
    torn, good, huge = [await upload(a, name=f"{n}.mp4") for n in range(3)]
    fleet.overwrite(f"m/files/{tenant_key('t')}/{torn.id}.json", b'{"id": "file-')
    fleet.overwrite(f"m/files/{tenant_key('t')}/{huge.id}.json", b" " * 100_000)
    assert await missing(a, torn.id) and await missing(a, huge.id)
    assert [r.id for r in await a.list("t")] == [good.id]


async def test_one_content_uploaded_and_fetched_by_many_at_once(fleet: Fleet) -> None:
    a, b = fleet.gateway("a"), fleet.gateway("b")
    data = os.urandom(300_000)
    records = await asyncio.gather(*(upload(shelf, data) for shelf in (a, b, a, b)))
    assert len({r.id for r in records}) == 4 and len({r.sha256 for r in records}) == 1
    with FlakyProxy(fleet.s3.endpoint) as proxy:
        c = fleet.gateway("c", endpoint=proxy.url)
        assert set(await asyncio.gather(*(content(c, records[0].id) for _ in range(8)))) == {data}
        fetched = [target for method, target, *_ in proxy.seen if method == "GET" and "/contents/" in target]
        assert len(fetched) == 1, "one flight for all who wait"
    await a.delete("t", records[0].id)
    for record in records[1:]:  # nobody's content went with another's file
        assert await content(fleet.gateway(record.id), record.id) == data


async def test_what_the_disk_has_dropped_is_fetched_again(fleet: Fleet) -> None:
    a = fleet.gateway("a", disk=1_500_000)
    first = await upload(a, os.urandom(1_000_000))
    await upload(a, os.urandom(1_000_000))
    assert a._store.pin(first.sha256) is None
    assert hashlib.sha256(await content(a, first.id)).hexdigest() == first.sha256


async def test_pages_newest_first(fleet: Fleet) -> None:
    a, b = fleet.gateway("a"), fleet.gateway("b")
    ids = [(await upload(a, name=f"{n}.mp4")).id for n in range(5)]
    whole = [r.id for r in await b.list("t")]
    assert sorted(whole) == sorted(ids)
    pages: list[str] = []
    while page := await b.list("t", limit=2, after=pages[-1] if pages else ""):
        assert len(page) <= 2
        pages += [r.id for r in page]
    assert pages == whole


async def test_an_upload_that_could_not_be_kept_is_told_and_leaves_nothing(fleet: Fleet) -> None:
    for broken in ("/contents/", "/files/"):

        def plan(method: str, target: str, nth: int, broken: str = broken) -> Fault | None:
            return Fault.ERROR_500 if method == "PUT" and broken in target else None

        with FlakyProxy(fleet.s3.endpoint, plan) as proxy, pytest.raises(NotReady) as caught:
            await upload(fleet.gateway("a", endpoint=proxy.url))
        assert caught.value.stable_code == "media_store_failed" and caught.value.status == 503
        assert caught.value.retry_after_s and caught.value.retry_after_s > 0
        assert fleet.stored() == []


@pytest.mark.parametrize("error", [IntegrityError("half of it"), Conflict("busy"), NotFound("no bucket")])
async def test_whatever_the_store_says_to_an_upload_the_client_may_send_it_again(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fail(*_: object) -> None:
        raise error

    a = fleet.gateway("a")
    monkeypatch.setattr(a._place.store, "put_file", fail)
    with pytest.raises(NotReady) as caught:
        await upload(a)
    assert (caught.value.stable_code, caught.value.status) == ("media_store_failed", 503)
    assert fleet.stored() == []


async def test_a_store_that_is_away_is_our_fault_and_may_pass(fleet: Fleet) -> None:
    record = await upload(fleet.gateway("a"))
    with FlakyProxy(fleet.s3.endpoint, lambda method, target, nth: Fault.REFUSE) as proxy:
        b = fleet.gateway("b", endpoint=proxy.url)
        calls: list[Any] = [b.get("t", record.id), b.pin("t", record.id), b.list("t"), b.delete("t", record.id)]
        for call in [*calls, upload(b)]:
            with pytest.raises(NotReady) as caught:
                await call
            assert caught.value.stable_code == "media_store_failed"
    assert await content(fleet.gateway("b"), record.id) == b"bytes"


async def test_a_line_that_breaks_now_and_then_changes_no_byte(fleet: Fleet) -> None:
    data = os.urandom(3_000_000)
    record = await upload(fleet.gateway("a"), data)
    plan = lambda method, target, nth: Fault.CUT if "/contents/" in target and nth == 0 else None  # noqa: E731
    with FlakyProxy(fleet.s3.endpoint, plan) as proxy:
        assert await content(fleet.gateway("b", endpoint=proxy.url), record.id) == data
        assert proxy.faults == 1


async def test_a_start_on_a_bucket_that_is_not_there_is_refused(fleet: Fleet) -> None:
    fleet.bucket = "nowhere"
    with pytest.raises(NotFound) as caught:
        await fleet.gateway("a").open()
    assert caught.value.stable_code == "bucket_not_found"


# ---- bounds --------------------------------------------------------------------------------------------------------


async def test_a_tenant_keeps_at_most_so_much_wherever_it_was_taken(fleet: Fleet) -> None:
    bounds = Bounds(max_bytes=1000, max_tenant_bytes=12, max_tenant_files=3)
    a, b = fleet.gateway("a", bounds=bounds), fleet.gateway("b", bounds=bounds)
    first = await upload(a)
    await upload(b, b"other")
    with pytest.raises(LimitExceeded, match="10 of 12 bytes") as caught:
        await upload(a)
    assert caught.value.stable_code == "file_storage_full"
    await upload(a, tenant="another")
    await upload(b, b".")
    with pytest.raises(LimitExceeded, match="3 files"):
        await upload(a, b".")
    await b.delete("t", first.id)
    await upload(a, b".")


async def test_all_tenants_together_keep_at_most_so_much(fleet: Fleet) -> None:
    bounds = Bounds(max_bytes=12, max_tenant_bytes=10)
    a, b = fleet.gateway("a", bounds=bounds), fleet.gateway("b", bounds=bounds)
    await upload(a, tenant="x")
    await upload(a, tenant="y")
    with pytest.raises(LimitExceeded, match="uploads hold 10 of 12 bytes"):
        await upload(a, tenant="z")
    with pytest.raises(LimitExceeded, match="uploads hold 10 of 12 bytes"):
        await upload(b, tenant="z")


async def test_uploads_at_once_through_two_gateways_never_pass_the_tenants_bound(fleet: Fleet) -> None:
    bounds = Bounds(max_bytes=1000, max_tenant_bytes=12, max_tenant_files=10)
    gateways = [fleet.gateway(name, bounds=bounds) for name in "ab"]
    told = await asyncio.gather(*(upload(g, b"%d" % n * 5) for n in range(3) for g in gateways), return_exceptions=True)
    assert all(isinstance(t, FileRecord | LimitExceeded) for t in told)
    kept = [t for t in told if isinstance(t, FileRecord)]
    assert len(kept) <= 2 and len(fleet.stored()) == 2 * len(kept), "what was refused left nothing"


async def test_uploads_at_once_never_pass_the_bound_of_all(fleet: Fleet) -> None:
    a = fleet.gateway("a", bounds=Bounds(max_bytes=12, max_tenant_bytes=12))
    told = await asyncio.gather(*(upload(a, tenant=f"t{n}") for n in range(6)), return_exceptions=True)
    kept = [t for t in told if isinstance(t, FileRecord)]
    assert len(kept) <= 2, "those that pass the bound together may all be refused; none is accepted beyond it"
    assert len([t for t in told if isinstance(t, LimitExceeded)]) == 6 - len(kept)


async def test_a_restarted_gateway_counts_before_it_accepts(fleet: Fleet) -> None:
    bounds = Bounds(max_bytes=100, max_tenant_bytes=60)
    a = fleet.gateway("a", bounds=bounds)
    kept = [(t, (await upload(a, b"%d" % n * 10, tenant=t)).id) for n in range(5) for t in ("alice", "bob")]
    for opened in (True, False):
        b = fleet.gateway("b", bounds=bounds)
        if opened:
            await b.open()
        with pytest.raises(LimitExceeded, match="100 of 100 bytes"):
            await upload(b, tenant="mallory")
    for gateway in (a, b):
        await gateway._sweep.run(now=True)
        for tenant, file_id in kept:
            assert (await gateway.get(tenant, file_id)).id == file_id


async def test_what_was_deleted_makes_room_at_once_here_and_soon_elsewhere(fleet: Fleet) -> None:
    bounds = Bounds(max_bytes=10, max_tenant_bytes=10)
    a, b = fleet.gateway("a", bounds=bounds), fleet.gateway("b", bounds=bounds)
    first = await upload(a, tenant="x")
    await upload(a, tenant="y")
    with pytest.raises(LimitExceeded):
        await upload(b, tenant="z")
    await a.delete("x", first.id)
    await upload(a, tenant="z")
    await a.delete("z", (await a.list("z"))[0].id)
    fleet.now = RECOUNT_S + 1
    await upload(b, tenant="z")


async def test_files_within_their_time_stay_when_the_bounds_are_lowered(fleet: Fleet) -> None:
    kept = [await upload(fleet.gateway("a")) for _ in range(3)]
    b = fleet.gateway("b", bounds=Bounds(max_bytes=6, max_tenant_bytes=5, max_tenant_files=1))
    await b._sweep.run(now=True)
    assert [await content(b, r.id) for r in kept] == [b"bytes"] * 3
    with pytest.raises(LimitExceeded):
        await upload(b, b".", tenant="other")


async def test_age(fleet: Fleet) -> None:
    bounds = Bounds(max_bytes=1000, max_tenant_bytes=1000, max_age_s=100)
    a = fleet.gateway("a", bounds=bounds)
    record = await upload(a)
    fleet.now = 101
    assert await missing(a, record.id) and await a.list("t") == []
    assert fleet.stored() != []
    await a._sweep.run(now=True)
    assert fleet.stored() == []


async def test_halves_go_when_no_upload_can_still_be_under_way(fleet: Fleet) -> None:
    a = fleet.gateway("a")
    whole, orphan, empty = [await upload(a, name=f"{n}.mp4") for n in range(3)]
    fleet.remove(f"m/files/{tenant_key('t')}/{orphan.id}.json")
    fleet.remove(f"m/contents/{tenant_key('t')}/{empty.id}.{empty.expires_at}")
    fleet.overwrite("m/files/README", b"somebody's own")
    await a._sweep.run(now=True)
    assert len(fleet.stored()) == 5
    fleet.now = GRACE_S + 10
    await asyncio.gather(a._sweep.run(now=True), fleet.gateway("b")._sweep.run(now=True))
    assert len(fleet.stored()) == 3 and await content(a, whole.id) == b"bytes"


async def test_the_sweep_is_rare(fleet: Fleet) -> None:
    with FlakyProxy(fleet.s3.endpoint) as proxy:
        a = fleet.gateway("a", endpoint=proxy.url)
        await a._sweep.run(now=True)
        before = len(proxy.seen)
        await a.sweep()
        assert len(proxy.seen) == before, "not so soon again"
        fleet.now = 1000
        await a.sweep()
        assert len(proxy.seen) > before


async def test_an_upload_may_ask_to_expire_sooner_but_not_later(fleet: Fleet) -> None:
    a = fleet.gateway("a")
    with a._store.put(b"bytes") as blob:
        soon, late = [
            await a.create("t", blob, filename="a.mp4", purpose="vision", media=INFO, age_s=age_s)
            for age_s in (3600, 10**9)
        ]
    assert soon.expires_at - soon.created_at == 3600
    assert late.expires_at - late.created_at == WIDE.max_age_s
    fleet.now = 3601
    await a._sweep.run(now=True)
    assert len(fleet.stored()) == 2 and await content(a, late.id) == b"bytes"


async def test_a_record_of_a_newer_version_is_read_and_kept(fleet: Fleet) -> None:
    a = fleet.gateway("a")
    record = await upload(a)
    value = json.loads(to_json(record))
    value["shared"] = value["media"]["hdr"] = True
    fleet.overwrite(f"m/files/{tenant_key('t')}/{record.id}.json", json.dumps(value).encode())
    await a._sweep.run(now=True)
    assert await a.get("t", record.id) == record and await content(a, record.id) == b"bytes"


def directory(root: Path, name: str = "a", bounds: Bounds = WIDE) -> UploadStore:
    store = MediaStore(root / name, max_bytes=10**6)
    store.open()
    return UploadStore(upload_place(f"file://{root}/uploads"), store, bounds)


async def test_a_sweep_without_descriptors_removes_nothing(tmp_path: Path) -> None:
    uploads = directory(tmp_path)
    kept = [await upload(uploads, b"%d" % n) for n in range(5)]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 8, before[1]))
    try:
        with pytest.raises(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        for _ in range(4):  # from none to a few
            with suppress(NotReady):
                uploads._sweep._next = 0.0
                await uploads.sweep()
            os.close(held.pop())
    finally:
        for handle in held:
            os.close(handle)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert [await content(uploads, r.id) for r in kept] == [b"%d" % n for n in range(5)]
    assert len([p for p in (tmp_path / "uploads").rglob("file-*") if p.is_file()]) == 10


async def test_a_torn_record_in_a_directory_is_no_file_and_hides_no_other(tmp_path: Path) -> None:
    uploads = directory(tmp_path)
    torn, good, huge = [await upload(uploads, name=f"{n}.mp4") for n in range(3)]
    for record, data in ((torn, b'{"id": "file-'), (huge, b" " * 100_000)):
        (tmp_path / "uploads" / "files" / tenant_key("t") / f"{record.id}.json").write_bytes(data)
    assert await missing(uploads, torn.id) and await missing(uploads, huge.id)
    assert [r.id for r in await uploads.list("t")] == [good.id]


async def test_counts_see_more_than_one_page(tmp_path: Path) -> None:
    folder = tmp_path / "uploads" / "contents" / ("0" * 32)
    folder.mkdir(parents=True)
    for number in range(1200):
        (folder / f"file-{number:032x}.{2**33}").write_bytes(b"x")
    uploads = directory(tmp_path, bounds=Bounds(max_bytes=1200, max_tenant_bytes=1200))
    with pytest.raises(LimitExceeded, match="1200 of 1200 bytes"):
        await upload(uploads)
    assert len(list(folder.iterdir())) == 1200


@pytest.mark.parametrize("location", ["", "/dir", "bucket/prefix", "file://host/dir", "https://x/y"])
def test_a_location_must_be_one_of_the_two(location: str) -> None:
    with pytest.raises(UsageError) as caught:
        upload_place(location)
    assert caught.value.stable_code == "invalid_location" and "--media-store" in caught.value.remedy


async def test_gateways_of_one_machine_share_a_directory(tmp_path: Path) -> None:
    a, b = directory(tmp_path, "a"), directory(tmp_path, "b")
    for gateway in (a, b):
        await gateway.open()
    first, second = await upload(a), await upload(b, b"other")
    assert await content(b, first.id) == b"bytes"
    assert [r.id for r in await a.list("t")] == [second.id, first.id]
    assert [r.id for r in await a.list("t", oldest_first=True)] == [first.id, second.id]
    assert await a.list("t", purpose="batch") == []
    assert await directory(tmp_path, "c").get("t", first.id) == first, "after a restart"
    for record in (first, second):
        await b.delete("t", record.id)
        assert await missing(a, record.id)
    assert not [p for p in (tmp_path / "uploads").rglob("*") if p.is_file()]
