"""What was acknowledged survives a power cut, and each line that makes it so is missed when it goes."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.disks import ForgetfulDisk
from support.fakes import FakeClock
from support.mutation import mutated

from cosmos3_serve.contract.records import SampleState
from cosmos3_serve.contract.views import BatchState
from cosmos3_serve.errors import Cosmos3Error, SampleCode
from cosmos3_serve.generator.ledger import changes, database, files, restart
from cosmos3_serve.generator.ledger.batch import accepted, sample_failed, sample_state
from cosmos3_serve.generator.ledger.files import BatchFiles
from cosmos3_serve.generator.ledger.ledger import Ledger

PRAGMAS = {"synchronous": 2, "journal_mode": "wal", "locking_mode": "exclusive", "foreign_keys": 1}


def acceptance(request_id: str) -> dict[str, Any]:
    return accepted(
        request_id,
        tenant="t",
        body_sha256="0" * 64,
        model="m",
        samples=[("a", 1), ("b", 2)],
        engine={},
        detached=True,
        at=1.0,
    )


async def survives(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open batch, an ended one and a reopened one, with their files, at a power cut right after the last answer."""
    disk = ForgetfulDisk(monkeypatch)
    root = base / "parent" / "out"
    root.parent.mkdir()
    ledger = Ledger(root, FakeClock())
    await ledger.open()
    for name in ("open", "ended", "reopened"):
        uploads = {"first.png": b"pixels of " + name.encode()}
        await ledger.accept(acceptance(name), {"samples": [{}, {}], "request_id": name}, uploads)
        await ledger.write(name, sample_state(0, SampleState.SUCCEEDED, 2.0, outputs={"n": 1}))
        if name != "open":
            await ledger.write(name, sample_failed(1, SampleCode.ENGINE_FAILED, "no", 2.0))
            await ledger.end(name, [b"response of " + name.encode()])
    await ledger.reopen("reopened", [1], detached=True)
    found = disk.after_power_cut(root.parent, base / "left") / "out"
    await ledger.close()

    again = Ledger(found, FakeClock())
    live = {batch.request_id: batch for batch in await again.open()}
    try:
        assert set(live) == {"open", "reopened"}
        for batch in live.values():
            assert [sample.state.value for sample in batch.samples] == ["succeeded", "queued"]
        for name in ("open", "ended", "reopened"):
            assert (await again.request(name))["request_id"] == name
            assert BatchFiles(found, name).upload("first.png").read_bytes() == b"pixels of " + name.encode()
            assert BatchFiles(found, name).upload_names() == ["first.png"]
            assert (await again.details(name, results=True))[0].outputs == {"n": 1}
        ended = again.find("ended")
        assert ended is not None and ended.state is BatchState.FAILED
        assert await (await again.response("ended")).read() == b"response of ended"
    finally:
        await again.close()


async def exclusive(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every commit waits for the disk, and no other process gets in, whatever it knows of our lock file."""
    ledger = Ledger(base / "out", FakeClock())
    await ledger.open()
    try:
        for name, value in PRAGMAS.items():
            (got,) = await ledger._database.read(lambda c, name=name: c.execute(f"PRAGMA {name}").fetchone())
            assert got == value, name
        code = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('SELECT * FROM batch')"
        path = str(base / "out" / ".cosmos3" / "ledger.sqlite")
        other = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code, path], capture_output=True)
        assert b"database is locked" in other.stderr
    finally:
        await ledger.close()


async def atomic(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation that fails halfway leaves nothing, and the others of its commit stay whole."""
    ledger = Ledger(base / "out", FakeClock())
    await ledger.open()
    try:
        await ledger.accept(acceptance("r"), {})
        bad = [sample_state(0, SampleState.RUNNING, 2.0), sample_state(7, SampleState.RUNNING, 2.0)]
        good = sample_state(1, SampleState.RUNNING, 2.0)
        outcomes = await asyncio.gather(ledger.write("r", *bad), ledger.write("r", good), return_exceptions=True)
        assert isinstance(outcomes[0], ValueError) and outcomes[1] is True
        assert [sample.state.value for sample in await ledger.details("r")] == ["queued", "running"]
    finally:
        await ledger.close()


async def paged(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No read takes the ledger's thread for more than a page of rows."""
    monkeypatch.setattr("cosmos3_serve.generator.ledger.queries.PAGE", 16)
    ledger = Ledger(base / "out", FakeClock())
    await ledger.open()
    try:
        many = acceptance("r") | {"samples": [[f"s{i}", i] for i in range(50)]}
        await ledger.accept(many, {})
        await ledger.write("r", *[sample_state(i, SampleState.RUNNING, 2.0) for i in range(50)])
        assert [len(page) async for page in ledger.pages("r", results=True)] == [16, 16, 16, 2]
        assert [len(await ledger.events("r", after)) for after in (0, 16, 48)] == [16, 16, 3]
        assert [sample.name for sample in await ledger.details("r")] == [f"s{i}" for i in range(50)]
    finally:
        await ledger.close()


CHECKS = [survives, exclusive, atomic, paged]
MUTATIONS: list[tuple[Callable[..., Any], Callable[..., Any], str, str]] = [
    (survives, files.write_file, "os.fsync(descriptor)", "pass"),
    (survives, files.write_file, "sync_directory(path.parent)", "pass"),
    (survives, files.sync_directory, "os.fsync(descriptor)", "pass"),
    (survives, files.BatchFiles.create, "sync_directory(self.home.parent)", "pass"),
    (
        survives,
        files.BatchFiles.create,
        "write_file(self.upload(name), content)",
        "self.upload(name).write_bytes(content)",
    ),
    (survives, restart._restart, "(home.parent, output_root, output_root.parent)", "(output_root, output_root.parent)"),
    (survives, restart._restart, "(home.parent, output_root, output_root.parent)", "(home.parent, output_root.parent)"),
    (survives, restart._restart, "(home.parent, output_root, output_root.parent)", "(home.parent, output_root)"),
    (survives, database.transaction, '"COMMIT"', '"ROLLBACK"'),
    (survives, changes.reopen, "ended_at = NULL, ", ""),
    (survives, changes.end, "ended_at = ?, age_at", "created_at = ?, age_at"),
    (atomic, database._guarded, '"ROLLBACK TO operation"', '"SELECT 1"'),
    (paged, Ledger.pages, "start += len(rows)", "start += 1"),
]


@pytest.mark.parametrize("check", CHECKS)
async def test_it_holds(check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await check(tmp_path, monkeypatch)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: f"{m[1].__qualname__}: {m[2]} -> {m[3]}")
async def test_each_of_these_lines_is_missed(
    mutation: tuple[Any, Any, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, function, old, new = mutation
    with mutated(function, old, new):
        assert not await holds(check, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("name", "value"), [("synchronous", "normal"), ("synchronous", "off"), ("locking_mode", "normal")]
)
async def test_each_of_these_settings_is_missed(
    name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(database.PRAGMAS, name, value)
    assert not await holds(exclusive, tmp_path, monkeypatch)


async def holds(check: Any, base: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    try:
        await check(base, monkeypatch)
    except (AssertionError, Cosmos3Error, sqlite3.Error, OSError, KeyError, ValueError):
        return False
    return True
