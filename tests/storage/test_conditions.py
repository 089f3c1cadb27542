"""Conditional writes, create-only and compare-and-swap: what each outcome means, and the proof that they are kept."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.flaky import Fault, FaultPlan, FlakyProxy, canned
from support.s3 import keys_of

from cosmos3_serve.errors import Conflict, ExitCode, LimitExceeded, StorageFailure, UsageError
from cosmos3_serve.storage import files
from cosmos3_serve.storage.directory import DirectoryStore
from cosmos3_serve.storage.store import PROBE_KEPT_S, PROBES, ObjectInfo, ObjectStore

if TYPE_CHECKING:
    from conftest import Bucket  # type: ignore[import-not-found]

PASSING_409 = canned("409 Conflict", "<Error><Code>ConditionalRequestConflict</Code></Error>")
NOT_FOUND = canned("404 Not Found", "<Error><Code>NoSuchKey</Code></Error>")


async def held(store: ObjectStore, key: str) -> bytes:
    found = await store.get_bytes(key, max_bytes=1000)
    assert found is not None
    return found[1]


def first(times: int, method: str, answer: bytes) -> Callable[[str, dict[str, str]], bytes | None]:
    """Answer the first requests of a method (conditional ones, where it is a PUT) in the store's place."""
    left = [times]

    def reply(got: str, fields: dict[str, str]) -> bytes | None:
        if got != method or (method == "PUT" and not {"if-none-match", "if-match"} & set(fields)) or not left[0]:
            return None
        left[0] -= 1
        return answer

    return reply


async def test_small_objects_are_read_whole_or_not_at_all(store: ObjectStore) -> None:
    assert await store.get_bytes("a/k", max_bytes=10) is None
    stored = await store.put_bytes("a/k", b"0123456789")
    found = await store.get_bytes("a/k", max_bytes=10)
    assert found is not None and found[1] == b"0123456789"
    assert (found[0].key, found[0].size, found[0].etag) == ("a/k", 10, stored.etag)
    with pytest.raises(LimitExceeded):
        await store.get_bytes("a/k", max_bytes=9)


async def test_a_swap_replaces_exactly_the_version_it_was_given(store: ObjectStore) -> None:
    one = await store.put_bytes("k", b"version one", create=True)
    two = await store.swap("k", b"version two", one)
    assert await held(store, "k") == b"version two" and two.etag != one.etag
    with pytest.raises(Conflict) as caught:
        await store.swap("k", b"from an old view", one)
    assert caught.value.stable_code == "precondition_failed"
    assert await held(store, "k") == b"version two"
    await store.delete("k")
    with pytest.raises(Conflict) as caught:
        await store.swap("k", b"of an object that is gone", two)
    assert caught.value.stable_code == "precondition_failed"
    assert await store.head("k") is None, "a swap never creates"


async def test_of_concurrent_swaps_of_one_version_one_wins(store: ObjectStore) -> None:
    """A counter that 8 writers raise 3 times each by compare-and-swap alone ends at 24."""
    await store.put_bytes("counter", b"000")

    async def add() -> None:
        for _ in range(3):
            while True:
                found = await store.get_bytes("counter", max_bytes=10)
                assert found is not None
                try:
                    await store.swap("counter", b"%03d" % (int(found[1]) + 1), found[0])
                    break
                except Conflict:
                    await asyncio.sleep(0)

    await asyncio.gather(*(add() for _ in range(8)))
    assert await held(store, "counter") == b"024"


def test_versions_of_a_name_get_newer_even_where_the_clock_stands_still_or_goes_back(tmp_path: Path) -> None:
    """Inodes are reused, so only the time tells two versions of one size apart."""
    path, seen = tmp_path / "k", []
    for second in (50, 50, 40, 50, 51):
        part = files.part_of(path)
        part.write_bytes(b"same size")
        os.utime(part, ns=(0, second * 10**9))
        files.publish(part, path)
        seen.append(path.stat().st_mtime_ns)
    assert seen == sorted(set(seen)) and seen[-1] == 51 * 10**9


@pytest.mark.parametrize("times", [1, 3])
async def test_a_passing_conflict_on_a_free_key_is_retried(bucket: Bucket, times: int) -> None:
    with FlakyProxy(bucket.s3.endpoint, answer=first(times, "PUT", PASSING_409)) as proxy:
        await bucket.store(endpoint=proxy.url).put_bytes("k", b"mine", create=True)
    assert await held(bucket.store(), "k") == b"mine"


async def test_a_passing_conflict_beside_another_writer_is_that_writers(bucket: Bucket) -> None:
    await bucket.store().put_bytes("k", b"theirs")
    with FlakyProxy(bucket.s3.endpoint, answer=first(1, "PUT", PASSING_409)) as proxy:
        with pytest.raises(Conflict) as caught:
            await bucket.store(endpoint=proxy.url).put_bytes("k", b"mine", create=True)
        assert caught.value.stable_code == "object_exists"
    assert await held(bucket.store(), "k") == b"theirs"


async def test_an_endless_conflict_on_a_free_key_is_an_outage_not_an_input_error(bucket: Bucket) -> None:
    with FlakyProxy(bucket.s3.endpoint, answer=first(1000, "PUT", PASSING_409)) as proxy:
        with pytest.raises(StorageFailure) as caught:
            await bucket.store(endpoint=proxy.url).put_bytes("k", b"mine", create=True)
        assert caught.value.retryable and caught.value.exit_code != ExitCode.INPUT


async def test_a_passing_conflict_on_an_unchanged_version_is_retried(bucket: Bucket) -> None:
    direct = bucket.store()
    one = await direct.put_bytes("k", b"one")
    with FlakyProxy(bucket.s3.endpoint, answer=first(1, "PUT", PASSING_409)) as proxy:
        await bucket.store(endpoint=proxy.url).swap("k", b"two", one)
    with FlakyProxy(bucket.s3.endpoint, answer=first(1, "PUT", PASSING_409)) as proxy:
        with pytest.raises(Conflict) as caught:
            await bucket.store(endpoint=proxy.url).swap("k", b"three", one)
        assert caught.value.stable_code == "precondition_failed"
    assert await held(direct, "k") == b"two"


async def test_a_swap_whose_answer_was_lost_is_not_a_conflict_with_itself(bucket: Bucket) -> None:
    one = await bucket.store().put_bytes("k", b"one")
    plan = lambda method, target, nth: Fault.LOST_REPLY if (method, nth) == ("PUT", 0) else None  # noqa: E731
    with FlakyProxy(bucket.s3.endpoint, plan) as proxy:
        two = await bucket.store(endpoint=proxy.url).swap("k", b"two", one)
    assert (await bucket.store().swap("k", b"three", two)).size == 5


@pytest.mark.parametrize("size", [100, 9 * 2**20], ids=["one PUT", "multipart"])
async def test_an_own_write_that_is_not_visible_yet_is_waited_for(bucket: Bucket, tmp_path: Path, size: int) -> None:
    data, source = os.urandom(size), tmp_path / "source"
    source.write_bytes(data)
    for method in ("HEAD", "GET"):
        with FlakyProxy(bucket.s3.endpoint, answer=first(2, method, NOT_FOUND)) as proxy:
            store = bucket.store(endpoint=proxy.url)
            await store.put_file("k", source)
            assert await store.read_back("k") == (size, hashlib.sha256(data).hexdigest())


async def test_an_own_write_that_never_appears_is_an_outage_not_an_input_error(bucket: Bucket) -> None:
    with FlakyProxy(bucket.s3.endpoint, answer=first(1000, "GET", NOT_FOUND)) as proxy:
        store = bucket.store(endpoint=proxy.url)
        await store.put_bytes("k", b"x")
        with pytest.raises(StorageFailure) as caught:
            await store.read_back("k")
    assert caught.value.retryable and caught.value.exit_code != ExitCode.INPUT


async def test_a_proof_leaves_nothing_behind(store: ObjectStore) -> None:
    for prefix in ("", "out/batch"):
        assert (await store.prove(prefix, swap=True)).case_sensitive
    assert [info async for info in store.list()] == []


async def test_proofs_of_one_place_do_not_disturb_each_other(store: ObjectStore) -> None:
    await asyncio.gather(*(store.prove("out") for _ in range(16)))
    assert [info async for info in store.list()] == []


@pytest.mark.parametrize("skew_s", [-PROBE_KEPT_S - 10, PROBE_KEPT_S + 10])
async def test_a_proof_leaves_a_running_one_whatever_this_clock_says(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, skew_s: float
) -> None:
    await store.put_bytes(f"out/{PROBES}/probe-1", b"running")
    now = time.time
    if isinstance(store, DirectoryStore):  # on S3 a jump of the clock would make the signature invalid
        monkeypatch.setattr(time, "time", lambda: now() + skew_s)
    await store.prove("out")
    assert await store.head(f"out/{PROBES}/probe-1")


async def test_a_proof_removes_what_a_killed_one_left(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.put_bytes(f"out/{PROBES}/probe-1", b"left")
    list_all = store.list

    async def later(prefix: str = "") -> AsyncIterator[ObjectInfo]:
        """As the store would list it after its own clock went on."""
        async for info in list_all(prefix):
            old = info.key.endswith("probe-1")
            yield replace(info, modified=(info.modified or 0) - (PROBE_KEPT_S + 10 if old else 0))

    monkeypatch.setattr(store, "list", later)
    await store.prove("out")
    assert [info async for info in list_all()] == []


async def test_a_proof_survives_passing_faults(bucket: Bucket) -> None:
    with FlakyProxy(bucket.s3.endpoint, FaultPlan(3, rate=0.6)) as proxy:
        await bucket.store(endpoint=proxy.url).prove("out")
        assert proxy.faults
    assert keys_of(bucket.environ, bucket.name) == []


async def test_a_store_that_alters_bytes_is_found_out(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put = type(store).put_bytes
    monkeypatch.setattr(type(store), "put_bytes", lambda self, key, data, **how: put(self, key, b"5\r\n" + data, **how))
    with pytest.raises(Exception, match="gives back other bytes"):
        await store.prove("out")


async def test_a_case_insensitive_directory_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = DirectoryStore._path
    monkeypatch.setattr(DirectoryStore, "_path", lambda self, key: path(self, key.lower()))
    assert not (await DirectoryStore(tmp_path).prove()).case_sensitive


@pytest.mark.parametrize("place", ["/proc/out", "/etc/hostname/out"])
async def test_a_directory_that_cannot_be_written_is_an_input_error(place: str) -> None:
    with pytest.raises(UsageError) as caught:
        await DirectoryStore(Path(place)).prove()
    assert caught.value.stable_code == "location_not_writable" and caught.value.exit_code == ExitCode.INPUT


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
async def test_a_read_only_directory_is_an_input_error_and_a_full_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(error: int) -> Callable[[Path], int]:
        def create(part: Path) -> int:
            raise OSError(error, os.strerror(error))

        return create

    monkeypatch.setattr(files, "create_part", refuse(number))
    with pytest.raises(UsageError, match=os.strerror(number)):
        await DirectoryStore(tmp_path).prove()
    monkeypatch.setattr(files, "create_part", refuse(errno.ENOSPC))
    with pytest.raises(StorageFailure, match="No space left"):
        await DirectoryStore(tmp_path).prove()


def without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", no_links)


async def test_create_without_hard_links_renames_and_never_shows_an_empty_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_links(monkeypatch)
    store = DirectoryStore(tmp_path)
    replace = Path.replace

    def no_replace(self: Path, other: Path) -> Path:
        assert not other.exists(), "the name must not be claimed before its content is there"
        return replace(self, other)

    monkeypatch.setattr(Path, "replace", no_replace)
    await store.put_bytes("k", b"first", create=True)
    with pytest.raises(Conflict):
        await store.put_bytes("k", b"second", create=True)
    assert await held(store, "k") == b"first"
    assert [p.name for p in tmp_path.iterdir()] == ["k"]


async def test_a_file_system_with_neither_links_nor_such_a_rename_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_links(monkeypatch)

    class NoRename:
        def __init__(self, *_: object, **__: object) -> None: ...

    monkeypatch.setattr(files.ctypes, "CDLL", NoRename)
    store = DirectoryStore(tmp_path)
    with pytest.raises(StorageFailure) as caught:
        await store.prove()
    assert caught.value.stable_code == "conditional_put_unsupported" and "hard links" in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


async def test_a_swap_without_directory_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    store = DirectoryStore(tmp_path)
    one = await store.put_bytes("k", b"one")
    monkeypatch.setattr(files.fcntl, "flock", no_locks)
    await store.put_bytes("j", b"plain writes need no lock")
    with pytest.raises(StorageFailure) as caught:
        await store.swap("k", b"two", one)
    assert caught.value.stable_code == "conditional_put_unsupported"
    assert await held(store, "k") == b"one"


def refusing(status: str, code: str) -> Callable[[str, dict[str, str]], bytes | None]:
    """A store that does not know conditional PUTs, and says so."""
    answer = canned(status, f"<Error><Code>{code}</Code></Error>")
    return lambda method, fields: answer if method == "PUT" and "if-none-match" in fields else None


@pytest.mark.parametrize(
    ("status", "code"),
    [("501 Not Implemented", "NotImplemented"), ("400 Bad Request", "InvalidArgument"), ("501 Not Implemented", "")],
)
async def test_a_store_without_conditional_put_is_named_as_such_and_nothing_is_written(
    bucket: Bucket, status: str, code: str
) -> None:
    with FlakyProxy(bucket.s3.endpoint, answer=refusing(status, code)) as proxy:
        store = bucket.store(endpoint=proxy.url)
        for call in (store.prove("out"), store.put_bytes("k", b"x", create=True)):
            with pytest.raises(StorageFailure) as caught:
                await call
            assert caught.value.stable_code == "conditional_put_unsupported" and not caught.value.retryable
            assert "If-None-Match" in caught.value.remedy and "local directory" in caught.value.remedy
        assert len([seen for seen in proxy.seen if seen[0] == "PUT"]) == 2, "asking again would not help"
        await store.put_bytes("plain", b"x")
    assert keys_of(bucket.environ, bucket.name) == ["plain"]


async def test_another_400_is_no_verdict_on_conditional_puts(bucket: Bucket) -> None:
    with FlakyProxy(bucket.s3.endpoint, answer=refusing("400 Bad Request", "ExpiredToken")) as proxy:
        with pytest.raises(StorageFailure) as caught:
            await bucket.store(endpoint=proxy.url).prove("out")
        assert caught.value.stable_code == "storage_failed"


async def test_a_store_that_ignores_the_condition_is_found_out(bucket: Bucket) -> None:
    with FlakyProxy(bucket.s3.endpoint, strip="If-None-Match") as proxy:
        with pytest.raises(StorageFailure, match="overwrites") as caught:
            await bucket.store(endpoint=proxy.url).prove("out")
        assert caught.value.stable_code == "conditional_put_unsupported"
    assert keys_of(bucket.environ, bucket.name) == []
