"""The store keeps its bounds at every moment, never drops what is in use, and survives restarts and neighbours."""

import asyncio
import errno
import fcntl
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cosmos3_serve.errors import NotReady, StartRefused, StorageFailure
from cosmos3_serve.media.refusal import Refused
from cosmos3_serve.reasoner.media import blobs
from cosmos3_serve.reasoner.media.store import MediaStore


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def opened(root: Path, max_bytes: int = 1000, **more: float) -> MediaStore:
    store = MediaStore(root, max_bytes=max_bytes, **more)
    store.open()
    return store


def on_disk(root: Path) -> dict[str, int]:
    return {p.name: p.stat().st_size for p in (root / "blobs").rglob("*") if p.is_file()}


async def stream(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def test_bytes_are_kept_under_their_hash_once(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with store.put(b"hello") as one, store.put(b"hello") as two:
        assert one.sha256 == two.sha256 == sha(b"hello")
        assert one.path == two.path
        assert one.read() == b"hello"
    assert on_disk(tmp_path) == {sha(b"hello"): 5}
    assert (store.used_bytes, len(store)) == (5, 1)
    assert store.pin(sha(b"other")) is None


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    store = opened(tmp_path, 30)
    for name in (b"a", b"b", b"c"):
        store.put(name * 10).close()
    blob = store.pin(sha(b"a" * 10))
    assert blob is not None
    blob.close()
    store.put(b"d" * 10).close()
    assert set(on_disk(tmp_path)) == {sha(b"a" * 10), sha(b"c" * 10), sha(b"d" * 10)}
    assert store.used_bytes == 30
    assert store.evicted == 1


def test_what_is_in_use_stays_and_a_full_store_says_so(tmp_path: Path) -> None:
    store = opened(tmp_path, 25)
    first, second = store.put(b"a" * 10), store.put(b"b" * 10)
    with pytest.raises(NotReady) as caught:
        store.put(b"c" * 10)
    assert (caught.value.stable_code, caught.value.status) == ("media_store_full", 503)
    assert caught.value.retry_after_s
    assert first.read() == b"a" * 10
    assert store.used_bytes == 20, "nothing is left reserved"
    first.close()
    store.put(b"c" * 10).close()
    assert second.read() == b"b" * 10
    assert first.sha256 not in on_disk(tmp_path)


async def test_the_bound_holds_while_bytes_arrive(tmp_path: Path) -> None:
    store = opened(tmp_path, 10 * 2**20)
    most = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal most
        for _ in range(6):
            most = max(most, sum(on_disk(tmp_path).values()), store.used_bytes)
            yield bytes(2**20)

    for seed in range(4):
        blob = await store.put_stream(_after(bytes([seed]), chunks()), 10**8)
        blob.close()
    assert most <= 10 * 2**20
    assert store.used_bytes <= 10 * 2**20


async def _after(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk


async def test_streams_are_capped_and_leave_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path, 10**6)
    with pytest.raises(Refused) as caught:
        await store.put_stream(stream(b"x" * 60, b"y" * 60), 100)
    assert (caught.value.status, caught.value.code) == (413, "media_too_large")
    with pytest.raises(Refused) as caught:
        await store.put_stream(stream(), 100)
    assert caught.value.code == "media_empty"

    async def broken() -> AsyncIterator[bytes]:
        yield b"x"
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await store.put_stream(broken(), 100)
    assert on_disk(tmp_path) == {}
    assert store.used_bytes == 0


async def test_a_cancelled_stream_leaves_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    started = asyncio.Event()

    async def stuck() -> AsyncIterator[bytes]:
        yield b"x"
        started.set()
        await asyncio.sleep(60)

    task = asyncio.ensure_future(store.put_stream(stuck(), 100))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert on_disk(tmp_path) == {}
    assert store.used_bytes == 0


def test_a_restart_finds_what_was_there_in_the_order_of_use(tmp_path: Path) -> None:
    store = opened(tmp_path, 100)
    for age, name in ((300, b"old"), (200, b"mid"), (100, b"new")):
        with store.put(name * 10) as blob:
            when = blob.path.stat().st_mtime - age
            os.utime(blob.path, (when, when))
    again = opened(tmp_path, 100)
    assert (again.used_bytes, len(again)) == (90, 3)
    again.put(b"x" * 30).close()
    assert sha(b"old" * 10) not in on_disk(tmp_path)
    assert sha(b"mid" * 10) in on_disk(tmp_path)
    smaller = opened(tmp_path, 40)
    assert smaller.used_bytes <= 40
    assert sum(on_disk(tmp_path).values()) <= 40


def test_age_counts_from_the_last_use(tmp_path: Path) -> None:
    store = opened(tmp_path, 100)
    with store.put(b"old") as blob:
        path = blob.path
    past = path.stat().st_mtime - 1000
    os.utime(path, (past, past))
    used = store.pin(sha(b"old"))
    assert used is not None
    used.close()
    assert path.stat().st_mtime > past + 900, "a use is noted on disk"
    os.utime(path, (past, past))
    aged = MediaStore(tmp_path, max_bytes=100, max_age_s=500)
    aged.open()
    assert on_disk(tmp_path) == {}
    assert aged.used_bytes == 0


def test_half_written_files_of_the_dead_are_removed_and_of_the_living_are_not(tmp_path: Path) -> None:
    store = opened(tmp_path)
    writer = store.writer(100)
    writer.write(b"half")
    dead = tmp_path / "blobs" / "incoming" / ".0123.part"
    dead.write_bytes(b"x")
    os.utime(dead, (0, 0))
    opened(tmp_path)
    assert not dead.exists()
    writer.commit().close()
    assert on_disk(tmp_path) == {sha(b"half"): 4}


def test_another_process_cannot_drop_what_is_in_use_here(tmp_path: Path) -> None:
    store = opened(tmp_path, 100)
    script = (
        "import sys, pathlib\n"
        "from cosmos3_serve.reasoner.media.store import MediaStore\n"
        "s = MediaStore(pathlib.Path(sys.argv[1]), max_bytes=100)\n"
        "s.open()\n"
        "s.put(b'z' * 60).close()\n"
    )
    used, idle = store.put(b"u" * 40), store.put(b"i" * 40)
    idle.close()
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=60)
    assert used.read() == b"u" * 40
    assert set(on_disk(tmp_path)) == {used.sha256, sha(b"z" * 60)}
    assert store.pin(idle.sha256) is None
    found = store.pin(sha(b"z" * 60))
    assert found is not None, "what the other stored is found"
    found.close()
    store.sweep()
    assert store.used_bytes == 100


def test_many_threads_agree(tmp_path: Path) -> None:
    store = opened(tmp_path, 500)
    wrong: list[str] = []

    def work(seed: int) -> None:
        for index in range(60):
            if seed == 0 and index % 10 == 0:
                store.sweep()
            data = bytes([(seed * 7 + index) % 23]) * 50
            with store.put(data) as blob:
                if blob.read() != data:
                    wrong.append(blob.sha256)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert sum(on_disk(tmp_path).values()) == store.used_bytes <= 500


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [(errno.ENOSPC, NotReady, "media_store_full"), (errno.EIO, StorageFailure, "media_store_failed")],
)
def test_a_disk_that_fails_is_told_apart_from_a_full_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type, code: str
) -> None:
    store = opened(tmp_path)

    def fail(handle: int, data: bytes) -> None:
        raise OSError(number, os.strerror(number), str(tmp_path))

    with monkeypatch.context() as patch:
        patch.setattr("cosmos3_serve.storage.files.write_all", fail)
        with pytest.raises(kind) as caught:
            store.put(b"data")
    assert caught.value.stable_code == code
    assert str(tmp_path) not in caught.value.detail
    assert store.used_bytes == 0
    assert on_disk(tmp_path) == {}
    store.put(b"data").close()


def test_names_are_hashes_only(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="SHA-256"):
        blobs.blob_path(tmp_path, "../../etc/passwd")
    store = opened(tmp_path)
    with store.writer(10) as writer:
        writer.write(b"abc")
        with pytest.raises(ValueError, match="announced"):
            writer.commit(sha(b"other"))
    assert on_disk(tmp_path) == {}


# ---- the file system -------------------------------------------------------------------------------------------------


def refused_disk(root: Path, needed: int = 1) -> str:
    with pytest.raises(StartRefused) as refused:
        blobs.check_disk(root, needed)
    assert refused.value.stable_code == "store_unusable" and "emptyDir" in refused.value.remedy
    return refused.value.detail


def test_a_local_disk_will_do_and_nothing_is_left_on_it(tmp_path: Path) -> None:
    blobs.check_disk(tmp_path / "new" / "store", 1000)
    assert list((tmp_path / "new" / "store").iterdir()) == []


def test_a_network_file_system_without_such_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fcntl.flock

    def as_over_nfs(handle: int, operation: int) -> None:
        if operation & fcntl.LOCK_EX and fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        real(handle, operation)

    monkeypatch.setattr(fcntl, "flock", as_over_nfs)
    assert "cannot be locked" in refused_disk(tmp_path)
    monkeypatch.setattr(fcntl, "flock", lambda handle, operation: None)
    assert "two processes got the same lock" in refused_disk(tmp_path)


def test_a_full_disk_and_a_file_in_the_way_are_refused(tmp_path: Path) -> None:
    assert str(2**70) in refused_disk(tmp_path, 2**70)
    (tmp_path / "file").write_bytes(b"")
    refused_disk(tmp_path / "file")
