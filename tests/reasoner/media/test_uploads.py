"""Uploads: one tenant's, until deleted or too old, whatever the store drops meanwhile."""

from pathlib import Path

import pytest

from cosmos3_serve.errors import LimitExceeded, NotFound
from cosmos3_serve.reasoner.media.info import MediaInfo
from cosmos3_serve.reasoner.media.store import MediaStore
from cosmos3_serve.reasoner.media.uploads import FileRecord, Uploads

INFO = MediaInfo("video", "video/mp4", "mp4", "h264", "yuv420p", 160, 96, 24, 12.0, 2.0, 5, replica_frames=24)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path) -> MediaStore:
    store = MediaStore(tmp_path, max_bytes=1000)
    store.open()
    return store


def shelf(root: Path, store: MediaStore, clock: Clock, **more: int) -> Uploads:
    uploads = Uploads(root, store, **{"max_bytes": 1000, **more}, clock=clock)
    uploads.open()
    return uploads


def create(
    uploads: Uploads, store: MediaStore, data: bytes = b"bytes", tenant: str = "t", name: str = "a.mp4"
) -> FileRecord:
    with store.put(data) as blob:
        return uploads.create(tenant, blob, filename=name, purpose="vision", media=INFO)


def missing(uploads: Uploads, tenant: str, file_id: str) -> bool:
    with pytest.raises(NotFound) as caught:
        uploads.pin(tenant, file_id)
    return caught.value.stable_code == "file_not_found"


def test_create_get_list_delete(tmp_path: Path, store: MediaStore, clock: Clock) -> None:
    uploads = shelf(tmp_path, store, clock)
    first = create(uploads, store)
    clock.now += 10
    second = create(uploads, store, b"other", name="C:\\dir\\b\n.mp4")
    assert first.id.startswith("file-")
    assert first.id != second.id
    assert second.filename == "b.mp4"
    assert (first.bytes, first.created_at, first.purpose) == (5, 1_000_000, "vision")
    shown = first.as_object()
    assert (shown["object"], shown["status"], shown["media"]["frames"]) == ("file", "processed", 24)
    assert uploads.get("t", first.id) == first
    assert [r.id for r in uploads.list("t")] == [second.id, first.id]
    assert [r.id for r in uploads.list("t", limit=1)] == [second.id]
    assert [r.id for r in uploads.list("t", after=second.id)] == [first.id]
    record, blob = uploads.pin("t", first.id)
    with blob:
        assert (record, blob.read()) == (first, b"bytes")
    uploads.delete("t", first.id)
    assert missing(uploads, "t", first.id)
    assert [r.id for r in uploads.list("t")] == [second.id]


def test_other_tenants_see_nothing(tmp_path: Path, store: MediaStore, clock: Clock) -> None:
    uploads = shelf(tmp_path, store, clock)
    record = create(uploads, store, tenant="../a/b")
    assert missing(uploads, "t", record.id)
    assert uploads.list("t") == []
    with pytest.raises(NotFound):
        uploads.delete("t", record.id)
    assert uploads.get("../a/b", record.id) == record
    for strange in ("", "file-", "../../x", "file-" + "g" * 32, "file-" + "0" * 32):
        assert missing(uploads, "t", strange)


def test_an_upload_outlives_its_content_in_the_store(tmp_path: Path, store: MediaStore, clock: Clock) -> None:
    uploads = shelf(tmp_path, store, clock)
    record = create(uploads, store)
    store.forget(record.sha256)
    assert store.pin(record.sha256) is None
    _, blob = uploads.pin("t", record.id)
    with blob:
        assert blob.read() == b"bytes"


def test_a_restart_and_another_gateway_find_it(tmp_path: Path, store: MediaStore, clock: Clock) -> None:
    uploads, neighbour = shelf(tmp_path, store, clock), shelf(tmp_path, store, clock)
    record = create(uploads, store)
    assert neighbour.get("t", record.id) == record
    assert [r.id for r in neighbour.list("t")] == [record.id]
    assert shelf(tmp_path, store, clock).get("t", record.id) == record
    neighbour.delete("t", record.id)
    assert missing(uploads, "t", record.id)
    assert uploads.list("t") == []


def test_age_and_bounds(tmp_path: Path, store: MediaStore, clock: Clock) -> None:
    uploads = shelf(tmp_path, store, clock, max_bytes=12, max_files=2, max_age_s=100)
    first = create(uploads, store)
    create(uploads, store, tenant="other")
    with pytest.raises(LimitExceeded) as caught:
        create(uploads, store)
    assert caught.value.stable_code == "file_storage_full"
    assert "12" in caught.value.detail
    clock.now += 101
    assert missing(uploads, "t", first.id)
    assert uploads.list("t") == []
    uploads.sweep()
    assert not list((tmp_path / "uploads").rglob("file-*"))
    create(uploads, store)
    create(uploads, store)
    with pytest.raises(LimitExceeded, match="2 files"):
        create(uploads, store)


def test_a_torn_record_is_dropped(tmp_path: Path, store: MediaStore, clock: Clock) -> None:
    uploads = shelf(tmp_path, store, clock)
    record = create(uploads, store)
    (path,) = (tmp_path / "uploads").rglob("file-*.json")
    path.write_text('{"id": "file-')
    fresh = shelf(tmp_path, store, clock)
    assert missing(fresh, "t", record.id)
    assert not path.exists()
