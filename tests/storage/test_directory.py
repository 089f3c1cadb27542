"""What only a directory has: foreign files, links, permissions, filesystems without hard links."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from cosmos3_serve.errors import NotFound, StorageFailure
from cosmos3_serve.storage import files
from cosmos3_serve.storage.directory import DirectoryStore

MIB = 1024 * 1024


async def read(store: DirectoryStore, key: str) -> bytes:
    return b"".join([chunk async for chunk in store.get_stream(key)])


async def test_a_pipe_and_a_directory_are_no_objects(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dir").mkdir()
    store = DirectoryStore(tmp_path)
    for key in ("pipe", "dir"):
        assert await store.head(key) is None
        with pytest.raises(NotFound):
            await read(store, key)
    assert [i async for i in store.list()] == []


async def test_an_unfinished_write_is_no_object(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    await store.put_bytes("a", b"x")
    files.part_of(tmp_path / "a").write_bytes(b"half")
    assert [i.key async for i in store.list()] == ["a"]


async def test_readers_never_see_a_half_written_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, path = DirectoryStore(tmp_path), tmp_path / "k"
    seen: list[bytes | None] = []
    write_all = files.write_all

    def spy(handle: int, data: bytes) -> None:
        write_all(handle, data)
        seen.append(path.read_bytes() if path.exists() else None)

    monkeypatch.setattr(files, "write_all", spy)
    await store.put_bytes("k", b"first", create=True)
    await store.put_bytes("k", b"second")
    assert seen == [None, b"first"]


@pytest.mark.parametrize("create", [False, True])
async def test_a_failed_write_leaves_the_old_object_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, create: bool
) -> None:
    store = DirectoryStore(tmp_path)
    if not create:
        await store.put_bytes("k", b"old")

    def full(handle: int, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path))

    monkeypatch.setattr(files, "write_all", full)
    with pytest.raises(StorageFailure, match="No space left on device") as caught:
        await store.put_bytes("k", b"new", create=create)
    assert str(tmp_path) not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ([] if create else ["k"])
    if not create:
        assert await read(store, "k") == b"old"


async def test_a_file_where_a_directory_is_needed_is_a_typed_failure(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    await store.put_bytes("a", b"x")
    assert await store.head("a/b") is None
    await store.delete("a/b")
    for call in (store.put_bytes("a/b", b"x"), store.put_bytes("a/b/c", b"x", create=True), read(store, "a/b")):
        with pytest.raises(StorageFailure, match="Not a directory"):
            await call


async def test_a_name_too_long_for_the_filesystem_is_a_typed_failure(tmp_path: Path) -> None:
    with pytest.raises(StorageFailure, match="File name too long"):
        await DirectoryStore(tmp_path).put_bytes("x" * 300, b"")


async def test_an_object_cut_while_it_is_read_is_found(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    await store.put_bytes("k", bytes(3 * MIB))
    stream = store.get_stream("k")
    await anext(stream)
    os.truncate(tmp_path / "k", MIB)
    with pytest.raises(StorageFailure) as caught:
        [chunk async for chunk in stream]
    assert caught.value.stable_code == "object_changed"


async def test_check_looks_at_the_nearest_directory(tmp_path: Path) -> None:
    await DirectoryStore(tmp_path / "not" / "yet").check()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageFailure, match="Not a directory"):
        await DirectoryStore(tmp_path / "file" / "below").check()


async def test_no_file_is_touched_on_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads, writes and fsync may take seconds on a slow disk: each must happen on another thread."""
    loop, touched = threading.get_ident(), []
    for name in ("fsync", "write", "pread", "open", "link", "scandir", "unlink", "stat"):
        real = getattr(os, name)

        def spy(*args: object, _real=real, _name=name, **kwargs: object) -> object:  # type: ignore[no-untyped-def]
            touched.append((_name, threading.get_ident()))
            return _real(*args, **kwargs)

        monkeypatch.setattr(os, name, spy)
    store = DirectoryStore(tmp_path / "root")
    await store.put_bytes("a/b", b"x" * 100, create=True)
    await store.put_file("a/c", tmp_path / "root" / "a" / "b")
    await store.download("a/c", tmp_path / "copy")
    await store.hash_object("a/c")
    await store.head("a/c")
    [i async for i in store.list()]
    await store.delete("a/c")
    monkeypatch.undo()
    assert {"fsync", "write", "pread", "open", "link", "scandir"} <= {name for name, _ in touched}
    assert [name for name, thread in touched if thread == loop] == []
