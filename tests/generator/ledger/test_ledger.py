"""Ledger: acceptance is durable or nothing, a restart tells the truth, damage stays where it is."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.disks import failing_disk
from support.fakes import FakeClock

from cosmos3_serve.contract.records import SampleState
from cosmos3_serve.contract.views import BatchState
from cosmos3_serve.errors import Conflict, NotFound, NotReady, SampleCode, ServiceFailure, StartRefused
from cosmos3_serve.generator.ledger import database as database_module
from cosmos3_serve.generator.ledger import files as files_module
from cosmos3_serve.generator.ledger import restart as restart_module
from cosmos3_serve.generator.ledger.batch import (
    Batch,
    Sample,
    SampleDetail,
    accepted,
    sample_failed,
    sample_staged,
    sample_state,
)
from cosmos3_serve.generator.ledger.ledger import Ledger

HOME = Path(".cosmos3") / "ledger"
REQUEST = {"samples": [{"name": "a"}, {"name": "b"}, {"name": "c"}], "model": "m", "request_id": "r1"}


def acceptance(request_id: str = "r1", *, detached: bool = False, tenant: str = "t", count: int = 3) -> dict[str, Any]:
    return accepted(
        request_id,
        tenant=tenant,
        body_sha256="0" * 64,
        model="m",
        samples=[(name, seed) for seed, name in enumerate("abcdefgh"[:count])],
        engine={"engine": "fake"},
        detached=detached,
        at=1.0,
    )


async def opened(root: Path) -> Ledger:
    ledger = Ledger(root, FakeClock())
    await ledger.open()
    return ledger


async def ran(root: Path, request_id: str = "r1") -> None:
    """A batch that ended: two succeeded, one failed."""
    ledger = await opened(root)
    await ledger.accept(acceptance(request_id), REQUEST)
    done = [sample_state(i, SampleState.SUCCEEDED, 2.0, outputs={"n": i}) for i in range(2)]
    about = {"wave": {"slot": 1}, "compute": {"threads": 3}, "timings": {"queue": 1.0}, "guardrails": {"applied": True}}
    await ledger.write(request_id, *done, sample_failed(2, SampleCode.ENGINE_FAILED, "no", 3.0, **about))
    await ledger.end(request_id, [b'{"the":"response"}'])
    await ledger.close()


def states(batch: Batch) -> list[str]:
    return [sample.code or sample.state.value for sample in batch.samples]


async def test_an_ended_batch_is_the_same_after_a_restart(tmp_path: Path) -> None:
    await ran(tmp_path)
    ledger = await opened(tmp_path)
    summary = ledger.find("r1")
    assert summary is not None and summary.state is BatchState.FAILED and summary.bytes > 0
    batch = await ledger.load("r1")
    assert states(batch) == ["succeeded", "succeeded", "engine_failed"]
    _, second, third = await ledger.details("r1", results=True)
    assert second.outputs == {"n": 1} and third.message == "no" and third.compute == {"threads": 3}
    assert (await ledger.details("r1"))[1].outputs is None
    assert await ledger.detail("r1", "b") == second and await ledger.detail("r1", "x") is None
    assert await (await ledger.response("r1")).read() == b'{"the":"response"}'
    assert await ledger.request("r1") == REQUEST
    assert ledger.live_batches() == []
    await ledger.close()


@pytest.mark.parametrize(
    ("detached", "expected"),
    [
        (False, ["succeeded", "interrupted", "interrupted", "interrupted"]),
        (True, ["succeeded", "interrupted", "interrupted", "queued"]),
    ],
)
async def test_what_a_restart_does_to_samples_in_each_state(
    tmp_path: Path, detached: bool, expected: list[str]
) -> None:
    ledger = await opened(tmp_path)
    await ledger.accept(acceptance(detached=detached, count=4), REQUEST)
    await ledger.write(
        "r1",
        sample_state(0, SampleState.SUCCEEDED, 2.0),
        sample_state(1, SampleState.RUNNING, 2.0),
        sample_state(2, SampleState.STAGING, 2.0),
    )
    await ledger.close()
    ledger = Ledger(tmp_path, FakeClock())
    (batch,) = await ledger.open()
    assert states(batch) == expected
    assert batch.retryable() == [i for i, state in enumerate(expected) if state == "interrupted"]
    await ledger.close()
    again = Ledger(tmp_path, FakeClock())
    assert [states(batch) for batch in await again.open()] == [expected]
    await again.close()


async def test_a_process_killed_while_it_writes_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    """A real process, killed for real in the middle of its stream of acceptances and results."""
    code = """
import asyncio, sys
from pathlib import Path
sys.path[:0] = sys.argv[2].split(":")
from test_ledger import REQUEST, acceptance, opened
from cosmos3_serve.contract.records import SampleState
from cosmos3_serve.generator.ledger.batch import sample_state
async def main():
    ledger = await opened(Path(sys.argv[1]))
    for n in range(10000):
        await ledger.accept(acceptance(f"r{n}"), REQUEST)
        await ledger.write(f"r{n}", sample_state(0, SampleState.SUCCEEDED, 2.0))
        print(n, flush=True)
asyncio.run(main())
"""
    here = Path(__file__)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(tmp_path), f"{here.parent}:{here.parents[2]}", stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    last = -1
    async for line in process.stdout:
        last = int(line)
        if last == 20:
            process.kill()
    await process.wait()
    ledger = await opened(tmp_path)
    for n in range(last + 1):
        assert states(await ledger.load(f"r{n}")) == ["succeeded", "interrupted", "interrupted"]
    assert len(ledger.live_batches()) in (last + 1, last + 2)
    await ledger.close()


BREAKS = {
    "the state of a sample": "UPDATE sample SET state = 'melted' WHERE batch = (SELECT id FROM batch WHERE {bad})",
    "the code of a sample": "UPDATE sample SET code = 'melted' WHERE batch = (SELECT id FROM batch WHERE {bad})",
    "a lost sample": "DELETE FROM sample WHERE i = 1 AND batch = (SELECT id FROM batch WHERE {bad})",
    "no samples": "DELETE FROM sample WHERE batch = (SELECT id FROM batch WHERE {bad})",
    "a time that is text": "UPDATE batch SET created_at = 'yesterday' WHERE {bad}",
    "an engine that is no object": "UPDATE batch SET engine = '[' WHERE {bad}",
    "an end that is text": "UPDATE batch SET ended_at = 'never' WHERE {bad}",
}


@pytest.mark.parametrize("over", [True, False], ids=["ended", "open"])
@pytest.mark.parametrize("broken", BREAKS)
async def test_a_damaged_batch_is_reported_and_the_others_start(tmp_path: Path, broken: str, over: bool) -> None:
    for name in ("good", "bad"):
        if over:
            await ran(tmp_path, name)
            continue
        ledger = await opened(tmp_path)
        await ledger.accept(acceptance(name, detached=True), REQUEST)
        await ledger.close()
    database = sqlite3.connect(tmp_path / ".cosmos3" / "ledger.sqlite")
    database.execute(BREAKS[broken].format(bad="request_id = 'bad'"))
    database.commit()
    database.close()
    ledger = await opened(tmp_path)
    assert len(states(await ledger.load("good"))) == 3
    with pytest.raises(ServiceFailure) as caught:
        await ledger.load("bad")
    assert caught.value.stable_code == "ledger_damaged"
    summary = ledger.find("bad")
    assert summary is not None and summary.damage is not None and summary.tenant == "t"
    assert [batch.request_id for batch in ledger.live_batches()] == ([] if over else ["good"])
    await ledger.close()
    again = await opened(tmp_path)  # and it is still reported by the next start
    with pytest.raises(ServiceFailure):
        await again.load("bad")
    await again.expire("bad")
    await again.forget("bad")
    assert again.find("bad") is None
    await again.close()


async def test_an_altered_result_is_damage_not_a_wrong_answer(tmp_path: Path) -> None:
    await ran(tmp_path)
    database = sqlite3.connect(tmp_path / ".cosmos3" / "ledger.sqlite")
    (packed,) = database.execute("SELECT result FROM detail WHERE i = 0").fetchone()
    altered = bytearray(packed)
    altered[len(altered) // 2] ^= 1
    database.execute("UPDATE detail SET result = ? WHERE i = 0", (bytes(altered),))
    database.commit()
    database.close()
    ledger = await opened(tmp_path)
    with pytest.raises(ServiceFailure) as caught:
        await ledger.details("r1", results=True)
    assert caught.value.stable_code == "ledger_damaged"
    await ledger.close()


async def test_a_file_that_is_no_ledger_refuses_the_start_and_says_what_to_do(tmp_path: Path) -> None:
    await ran(tmp_path)
    (tmp_path / ".cosmos3" / "ledger.sqlite").write_bytes(b"not a database" * 1000)
    with pytest.raises(StartRefused) as caught:
        await opened(tmp_path)
    assert caught.value.stable_code == "ledger_unreadable" and "ledger.sqlite" in (caught.value.remedy or "")


async def test_a_ledger_of_a_later_version_refuses_the_start(tmp_path: Path) -> None:
    await ran(tmp_path)
    database = sqlite3.connect(tmp_path / ".cosmos3" / "ledger.sqlite")
    database.execute("PRAGMA user_version=99")
    database.close()
    with pytest.raises(StartRefused) as caught:
        await opened(tmp_path)
    assert caught.value.stable_code == "ledger_format"


RECORDS = st.lists(
    st.one_of(
        st.builds(sample_state, st.integers(0, 2), st.sampled_from(SampleState), st.just(2.0)),
        st.builds(sample_failed, st.integers(0, 2), st.sampled_from(SampleCode), st.text(), st.just(2.0)),
        st.builds(sample_staged, st.integers(0, 2), st.just([{"uri": "s3://b/k"}]), st.just(2.0)),
        st.just({"kind": "started", "at": 2.0}),
        st.just({"kind": "cancel", "at": 2.0}),
        st.just({"kind": "detached"}),
    ),
    max_size=12,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=RECORDS)
def test_what_is_read_again_is_what_was_seen(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    async def attempt() -> None:
        root = tmp_path / os.urandom(8).hex()
        ledger = await opened(root)
        batch = await ledger.accept(acceptance(), REQUEST)
        for record in records:
            await ledger.write("r1", record)
        stored = await ledger.details("r1")
        assert [(s.state, s.code) for s in stored] == [(s.state, s.code) for s in batch.samples]
        seen = states(batch)
        await ledger.close()
        ledger = await opened(root)
        again = await ledger.load("r1")
        for before, after in zip(seen, states(again), strict=True):
            gone = {"running", "staging"} if batch.detached else {"running", "staging", "queued"}
            assert after == ("interrupted" if before in gone else before)
        await ledger.close()

    asyncio.run(attempt())


async def test_a_full_disk_at_acceptance_leaves_nothing_and_does_not_burn_the_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = await opened(tmp_path)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    for name in ("write", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(files_module.os, name, full)
            with pytest.raises(NotReady) as caught:
                await ledger.accept(acceptance(), REQUEST)
        assert caught.value.stable_code == "disk_full" and caught.value.retry_after_s
        assert list((tmp_path / HOME).iterdir()) == []
    await ledger.accept(acceptance(), REQUEST)
    await ledger.close()


async def test_an_acceptance_whose_commit_fails_is_none_not_even_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller was told 503; the same POST then is accepted, and a restart finds what was acknowledged, no more."""
    ledger = await opened(tmp_path)
    with failing_disk(monkeypatch, full=False, rows_only=True):
        with pytest.raises(NotReady) as caught:
            await ledger.accept(acceptance(detached=True), REQUEST)
        with pytest.raises(NotReady):
            await ledger.accept(acceptance("r2", detached=True), REQUEST)
    assert caught.value.stable_code == "ledger_unavailable"
    assert ledger.find("r1") is None
    await ledger.accept(acceptance(detached=True), REQUEST)
    await ledger.close()
    again = Ledger(tmp_path, FakeClock())
    assert [batch.request_id for batch in await again.open()] == ["r1"]
    await again.close()


async def test_a_commit_that_was_reported_as_failed_but_reached_the_disk_starts_nothing(tmp_path: Path) -> None:
    """An fsync that fails after the bytes went out: the row is there, its caller was refused, its request is gone."""
    ledger = await opened(tmp_path)
    await ledger.accept(acceptance(detached=True), REQUEST)
    await ledger.close()
    shutil.rmtree(tmp_path / HOME / "r1")
    again = Ledger(tmp_path, FakeClock())
    assert await again.open() == [] and again.find("r1") is None
    await again.close()


async def test_a_failed_write_changes_neither_disk_nor_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = await opened(tmp_path)
    await ledger.accept(acceptance(), REQUEST)
    with failing_disk(monkeypatch, full=False):
        with pytest.raises(NotReady) as caught:
            await ledger.write("r1", sample_state(0, SampleState.RUNNING, 2.0))
        assert caught.value.stable_code == "ledger_unavailable"
    assert states(await ledger.load("r1")) == ["queued"] * 3
    await ledger.write("r1", sample_state(1, SampleState.RUNNING, 2.0))
    assert [sample.state.value for sample in await ledger.details("r1")] == ["queued", "running", "queued"]
    await ledger.close()


async def test_a_record_that_is_no_json_is_refused_and_its_neighbours_are_written(tmp_path: Path) -> None:
    ledger = await opened(tmp_path)
    await ledger.accept(acceptance(), REQUEST)
    bad = sample_state(0, SampleState.SUCCEEDED, 2.0, outputs={"n": float("nan")})
    outcomes = await asyncio.gather(
        ledger.write("r1", sample_state(1, SampleState.RUNNING, 2.0)),
        ledger.write("r1", bad),
        ledger.write("r1", sample_state(2, SampleState.RUNNING, 2.0)),
        return_exceptions=True,
    )
    assert [outcomes[0], type(outcomes[1]), outcomes[2]] == [True, ValueError, True]
    assert [sample.state.value for sample in await ledger.details("r1")] == ["queued", "running", "running"]
    await ledger.close()


async def test_no_record_lands_after_the_end(tmp_path: Path) -> None:
    ledger = await opened(tmp_path)
    batch = await ledger.accept(acceptance(), REQUEST)
    await ledger.write("r1", *[sample_state(i, SampleState.SUCCEEDED, 2.0) for i in range(3)])
    ending = asyncio.create_task(ledger.end("r1", [b"{}"]))
    cancels = [asyncio.create_task(ledger.write("r1", {"kind": "cancel", "at": 3.0})) for _ in range(50)]
    await asyncio.gather(ending, *cancels)
    assert not await ledger.write("r1", {"kind": "cancel", "at": 4.0})
    told = await ledger.events("r1", 0)
    assert [event.type for event in told] == ["batch", "sample", "sample", "sample", "end"]
    assert told[-1].id == batch.seq  # the last change of all
    await ledger.close()


async def test_a_removed_ledger_file_is_noticed(tmp_path: Path) -> None:
    """SQLite would go on writing into a file without a name."""
    ledger = await opened(tmp_path)
    await ledger.accept(acceptance(), REQUEST)
    (tmp_path / ".cosmos3" / "ledger.sqlite").unlink()
    with pytest.raises(NotReady) as caught:
        await ledger.write("r1", {"kind": "started", "at": 2.0})
    assert caught.value.stable_code == "ledger_unavailable"
    await ledger.close()


async def test_a_cancelled_caller_does_not_tear_disk_and_memory_apart(tmp_path: Path) -> None:
    ledger = await opened(tmp_path)
    task = asyncio.ensure_future(ledger.accept(acceptance(), REQUEST))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ledger.live("r1") is not None and (tmp_path / HOME / "r1").is_dir()
    await ledger.close()


async def test_an_id_whose_outputs_nobody_accounts_for_is_not_reused(tmp_path: Path) -> None:
    (tmp_path / "r1").mkdir()
    ledger = await opened(tmp_path)
    with pytest.raises(Conflict) as caught:
        await ledger.accept(acceptance(), REQUEST)
    assert caught.value.stable_code == "request_id_taken"
    await ledger.close()


async def test_a_start_on_a_full_disk_lets_retention_run_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk has room again once the folder of the batch that is due is gone."""
    for name in ("due", "kept"):
        await ran(tmp_path, name)
        (tmp_path / name / "a").mkdir(parents=True)
    ledger = await opened(tmp_path)
    await ledger.accept(acceptance("live", detached=True), REQUEST)
    await ledger.write("live", sample_state(0, SampleState.RUNNING, 2.0))
    await ledger.close()
    real = database_module.transaction

    def transaction(connection: sqlite3.Connection, work: Any) -> Any:
        if (tmp_path / "due").exists():
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return real(connection, work)

    monkeypatch.setattr(restart_module, "transaction", transaction)
    with pytest.raises(StartRefused) as caught:
        await opened(tmp_path)
    assert caught.value.stable_code == "disk_full"
    ledger = Ledger(tmp_path, FakeClock())
    (batch,) = await ledger.open(lambda ended, age: [s.request_id for s in ended if s.request_id == "due"])
    assert states(batch) == ["interrupted", "queued", "queued"]
    due, kept = ledger.find("due"), ledger.find("kept")
    assert due is not None and due.state is BatchState.EXPIRED and kept is not None and kept.expired_at is None
    await ledger.close()


async def test_two_services_never_share_an_output_root(tmp_path: Path) -> None:
    first = await opened(tmp_path)
    with pytest.raises(StartRefused) as caught:
        await opened(tmp_path)
    assert caught.value.stable_code == "output_root_in_use"
    await first.close()
    await (await opened(tmp_path)).close()


async def test_a_root_that_is_no_directory_refuses_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartRefused) as caught:
        await opened(tmp_path / "file")
    assert caught.value.stable_code == "output_root_unusable"


async def test_reopened_samples_forget_their_results_and_survive_a_restart(tmp_path: Path) -> None:
    await ran(tmp_path)
    ledger = await opened(tmp_path)
    batch = await ledger.reopen("r1", [2], detached=True)
    assert states(batch) == ["succeeded", "succeeded", "queued"] and batch.detached
    assert batch.samples[2] == Sample("c", 2)
    assert (await ledger.details("r1"))[2] == SampleDetail("c", 2)
    await ledger.close()
    ledger = Ledger(tmp_path, FakeClock())
    (batch,) = await ledger.open()
    assert states(batch) == ["succeeded", "succeeded", "queued"]
    await ledger.write("r1", sample_state(2, SampleState.SUCCEEDED, 9.0))
    await ledger.end("r1", [b"second"])
    assert await (await ledger.response("r1")).read() == b"second"
    assert (await ledger.load("r1")).state is BatchState.SUCCEEDED
    await ledger.close()


async def test_an_expired_batch_leaves_a_tombstone_and_forgetting_frees_the_id(tmp_path: Path) -> None:
    await ran(tmp_path)
    (tmp_path / "r1" / "a").mkdir(parents=True)
    (tmp_path / "r1" / "a" / "vision.jpg").write_bytes(b"x" * 1000)
    ledger = await opened(tmp_path)
    await ledger.expire("r1")
    assert not (tmp_path / "r1").exists()
    assert not (tmp_path / HOME / "r1").exists()
    await ledger.close()
    ledger = await opened(tmp_path)
    summary = ledger.find("r1")
    assert summary is not None and summary.state is BatchState.EXPIRED
    with pytest.raises(NotFound):
        await ledger.load("r1")
    await ledger.forget("r1")
    assert ledger.find("r1") is None
    await ledger.accept(acceptance(), REQUEST)
    await ledger.close()


async def test_a_start_finishes_an_expiry_that_was_cut_short(tmp_path: Path) -> None:
    await ran(tmp_path)
    ledger = await opened(tmp_path)
    await ledger.expire("r1")
    await ledger.close()
    (tmp_path / "r1" / "a").mkdir(parents=True)
    ledger = await opened(tmp_path)
    assert not (tmp_path / "r1").exists()
    await ledger.close()
