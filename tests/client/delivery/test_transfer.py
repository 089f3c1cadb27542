"""Downloads: verified while streaming, continued where they were cut, given up with a name."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from support.baseline_server import BaselineServer, Faults

from cosmos3_serve.client.deadline import Deadline
from cosmos3_serve.client.delivery import transfer as module
from cosmos3_serve.client.delivery.transfer import Transfer
from cosmos3_serve.client.http import Service
from cosmos3_serve.contract.records import Artifact
from cosmos3_serve.errors import Cosmos3RayServeError, IntegrityError, StorageFailure, Unauthorized
from cosmos3_serve.retry import RetryPolicy

DATA = bytes(range(256)) * 4096  # 1 MiB
QUICK = RetryPolicy(attempts=6, base_s=0.001, cap_s=0.002)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BaselineServer]:
    with BaselineServer(tmp_path / "server", faults=Faults()) as made:
        (made.root / "r/a").mkdir(parents=True)
        (made.root / "r/a/vision.jpg").write_bytes(DATA)
        yield made


@pytest.fixture
async def service(server: BaselineServer) -> AsyncIterator[Service]:
    async with Service(server.endpoint, server.token, Deadline(60)) as made:
        yield made


def artifact(data: bytes = DATA, path: str = "r/a/vision.jpg") -> Artifact:
    return Artifact(sample="a", path=path, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


class Count:
    def __init__(self) -> None:
        self.total = 0

    def __call__(self, count: int) -> None:
        self.total += count


class Killed(BaseException):
    pass


async def half_done(service: Service, spool: Path) -> int:
    """Leave what a client killed in the middle of a download leaves; returns the bytes it kept."""

    def stop(count: int) -> None:
        if count > 0:
            raise Killed

    service_pieces = module.PIECE_BYTES
    try:
        module.PIECE_BYTES = 300_000
        with pytest.raises(Killed):
            await Transfer(service, spool, on_bytes=stop).fetch(artifact())
    finally:
        module.PIECE_BYTES = service_pieces
    return (spool / "r/a/vision.jpg.~part").stat().st_size


async def test_a_file_arrives_verified(server: BaselineServer, service: Service, tmp_path: Path) -> None:
    count = Count()
    path = await Transfer(service, tmp_path / "spool", on_bytes=count).fetch(artifact())
    assert path.read_bytes() == DATA
    assert count.total == len(DATA)
    assert [p.name for p in path.parent.iterdir()] == ["vision.jpg"]


@pytest.mark.parametrize("no_range", [False, True])
async def test_cuts_are_continued_by_range_or_begun_anew(
    server: BaselineServer, service: Service, tmp_path: Path, no_range: bool
) -> None:
    server.faults.cut_downloads, server.faults.cut_after, server.faults.no_range = 3, 300_000, no_range
    count = Count()
    path = await Transfer(service, tmp_path / "spool", on_bytes=count, retry=QUICK).fetch(artifact())
    assert path.read_bytes() == DATA
    assert count.total == len(DATA)
    ranges = [value for _, _, value in server.log]
    assert ranges == (["", "", "", ""] if no_range else ["", "bytes=300000-", "bytes=600000-", "bytes=900000-"])


async def test_a_later_process_continues_where_the_first_was_killed(
    server: BaselineServer, service: Service, tmp_path: Path
) -> None:
    kept = await half_done(service, tmp_path / "spool")
    path = await Transfer(service, tmp_path / "spool").fetch(artifact())
    assert path.read_bytes() == DATA
    assert server.log[-1][2] == f"bytes={kept}-"


async def test_a_part_of_another_version_is_not_continued(
    server: BaselineServer, service: Service, tmp_path: Path
) -> None:
    await half_done(service, tmp_path / "spool")
    other = DATA[::-1] + b"!"  # another size gives another ETag
    (server.root / "r/a/vision.jpg").write_bytes(other)
    path = await Transfer(service, tmp_path / "spool").fetch(artifact(other))
    assert path.read_bytes() == other


async def test_a_part_without_a_tag_is_not_trusted(server: BaselineServer, service: Service, tmp_path: Path) -> None:
    part = tmp_path / "spool/r/a/vision.jpg.~part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"garbage of unknown origin")
    path = await Transfer(service, tmp_path / "spool").fetch(artifact())
    assert path.read_bytes() == DATA
    assert server.log[-1][2] == ""


async def test_kept_files_are_verified_and_not_fetched_again(
    server: BaselineServer, service: Service, tmp_path: Path
) -> None:
    path = await Transfer(service, tmp_path / "spool").fetch(artifact())
    fetched = len(server.log)
    await Transfer(service, tmp_path / "spool").fetch(artifact())
    assert len(server.log) == fetched
    path.write_bytes(DATA[:-1] + b"\x00")  # the disk changed its mind
    await Transfer(service, tmp_path / "spool").fetch(artifact())
    assert path.read_bytes() == DATA


async def test_wrong_bytes_are_fetched_anew_then_refused(
    server: BaselineServer, service: Service, tmp_path: Path
) -> None:
    server.faults.flip_bytes = {"vision.jpg": 1}
    count = Count()
    path = await Transfer(service, tmp_path / "spool", on_bytes=count).fetch(artifact())
    assert (path.read_bytes(), count.total) == (DATA, len(DATA))
    path.unlink()
    server.faults.flip_bytes = {"vision.jpg": 99}
    with pytest.raises(IntegrityError, match=r"artifact integrity mismatch for r/a/vision\.jpg"):
        await Transfer(service, tmp_path / "spool").fetch(artifact())
    assert list(path.parent.iterdir()) == []


async def test_more_bytes_than_declared_are_not_stored(
    server: BaselineServer, service: Service, tmp_path: Path
) -> None:
    with pytest.raises(IntegrityError, match="more than the declared 1000 bytes"):
        await Transfer(service, tmp_path / "spool").fetch(artifact(DATA[:1000]))
    assert not (tmp_path / "spool/r/a/vision.jpg").exists()


async def test_fewer_bytes_than_declared_end_typed(server: BaselineServer, service: Service, tmp_path: Path) -> None:
    with pytest.raises(Cosmos3RayServeError, match=r"downloading r/a/vision\.jpg"):
        await Transfer(service, tmp_path / "spool", retry=QUICK).fetch(artifact(DATA + b"more"))


async def test_passing_failures_are_retried(server: BaselineServer, service: Service, tmp_path: Path) -> None:
    server.faults.artifact_statuses = [503, 500, 429]
    path = await Transfer(service, tmp_path / "spool", retry=QUICK).fetch(artifact())
    assert path.read_bytes() == DATA


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [(404, Cosmos3RayServeError, "artifact_missing"), (401, Unauthorized, "unauthorized")],
)
async def test_refusals_are_typed(
    server: BaselineServer, service: Service, tmp_path: Path, status: int, kind: type[Exception], code: str
) -> None:
    server.faults.artifact_statuses = [status]
    with pytest.raises(kind) as caught:
        await Transfer(service, tmp_path / "spool").fetch(artifact())
    assert caught.value.stable_code == code  # type: ignore[attr-defined]


async def test_a_full_disk_is_typed(
    server: BaselineServer, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_all", full)
    with pytest.raises(StorageFailure, match="No space left") as caught:
        await Transfer(service, tmp_path / "spool").fetch(artifact())
    assert caught.value.stable_code == "spool_failed"
