"""Ledger: acceptance is durable or nothing, a restart tells the truth, damage stays where it is."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.fakes import FakeClock

from cosmos3_serve.contract.records import SampleState
from cosmos3_serve.contract.views import BatchState
from cosmos3_serve.errors import Conflict, NotFound, NotReady, SampleCode, ServiceFailure, StartRefused
from cosmos3_serve.generator import journal as journal_module
from cosmos3_serve.generator.batch import Batch, Sample, accepted, sample_failed, sample_staged, sample_state
from cosmos3_serve.generator.journal import read_journal
from cosmos3_serve.generator.ledger import Ledger
from cosmos3_serve.generator.recovery import recover

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
    await ledger.end(request_id, b'{"the":"response"}')
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
    assert batch.samples[1].outputs == {"n": 1}
    assert await ledger.response("r1") == b'{"the":"response"}'
    assert await ledger.request("r1") == REQUEST
    assert ledger.live_batches() == []
    await ledger.close()


async def test_a_start_without_the_summary_reads_the_journal_and_writes_it_again(tmp_path: Path) -> None:
    await ran(tmp_path)
    path = tmp_path / HOME / "r1" / "summary.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    ledger = await opened(tmp_path)
    assert ledger.find("r1") is not None and b'"r1"' in path.read_bytes()
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


async def test_killed_at_every_byte_of_the_journal(tmp_path: Path) -> None:
    """Whatever length the journal has at a power cut, the start works and tells a state that the batch was in."""
    await ran(tmp_path)
    home = tmp_path / HOME / "r1"
    data = (home / "journal.jsonl").read_bytes()
    first = data.index(b"\n") + 1
    steps = {
        0: ["interrupted", "interrupted", "interrupted"],
        1: ["succeeded", "interrupted", "interrupted"],
        2: ["succeeded", "succeeded", "interrupted"],
        3: ["succeeded", "succeeded", "engine_failed"],
    }
    for cut in range(len(data) + 1):
        (home / "summary.json").unlink(missing_ok=True)
        (home / "journal.jsonl").write_bytes(data[:cut])
        summaries, live = recover(tmp_path, 9.0)
        written = data[:cut].count(b"\n") - 1
        if cut < first:
            # Acceptance is renamed into place only after it is on disk, so this is damage, not a crash.
            assert not live and summaries[0].damage is not None
        elif written == 4:
            assert not live and summaries[0].state is BatchState.FAILED and summaries[0].damage is None
        else:
            ((batch, journal),) = live
            assert states(batch) == steps[written]
            # And what the start settled is itself on disk: the next start finds nothing more to settle.
            assert Batch.replay(read_journal(journal.path).records) == batch


async def test_a_process_killed_while_it_writes_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    """A real process, killed for real in the middle of its stream of acceptances and results."""
    code = """
import asyncio, sys
from pathlib import Path
sys.path[:0] = sys.argv[2].split(":")
from test_ledger import REQUEST, acceptance, opened
from cosmos3_serve.contract.records import SampleState
from cosmos3_serve.generator.batch import sample_state
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
        sys.executable, "-c", code, str(tmp_path), f"{here.parent}:{here.parents[1]}", stdout=subprocess.PIPE
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


@pytest.mark.parametrize("with_summary", [True, False])
async def test_a_damaged_batch_is_reported_and_the_others_live(tmp_path: Path, with_summary: bool) -> None:
    await ran(tmp_path, "good")
    await ran(tmp_path, "bad")
    home = tmp_path / HOME / "bad"
    data = bytearray((home / "journal.jsonl").read_bytes())
    data[len(data) // 2] ^= 1
    (home / "journal.jsonl").write_bytes(data)
    if not with_summary:
        (home / "summary.json").unlink()
    ledger = await opened(tmp_path)
    assert states(await ledger.load("good"))[0] == "succeeded"
    with pytest.raises(ServiceFailure) as caught:
        await ledger.load("bad")
    assert caught.value.stable_code == "ledger_damaged"
    summary = ledger.find("bad")
    assert summary is not None and summary.damage is not None and summary.tenant == "t"
    await ledger.close()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(junk=st.binary(max_size=300), name=st.sampled_from(["journal.jsonl", "summary.json", "request.json"]))
def test_no_content_of_a_ledger_file_stops_a_start(tmp_path: Path, junk: bytes, name: str) -> None:
    async def attempt() -> None:
        root = tmp_path / os.urandom(8).hex()
        home = root / HOME / "r1"
        home.mkdir(parents=True)
        (home / "journal.jsonl").write_bytes(b"")
        (home / name).write_bytes(junk)
        ledger = await opened(root)
        assert ledger.find("r1") is not None
        await ledger.close()

    asyncio.run(attempt())


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
            await ledger.write("r1", record, sync=False)
        assert Batch.replay(await ledger.records("r1")) == batch
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
    real = os.pwrite
    for allowed in (0, 1):
        calls = iter(range(10))

        def full(descriptor: int, data: memoryview, offset: int, allowed: int = allowed, calls: Any = calls) -> int:
            if next(calls) < allowed:
                return real(descriptor, data, offset)
            raise OSError(errno.ENOSPC, "full")

        monkeypatch.setattr(journal_module.os, "pwrite", full)
        with pytest.raises(NotReady) as caught:
            await ledger.accept(acceptance(), REQUEST)
        assert caught.value.stable_code == "disk_full" and caught.value.retry_after_s
        assert list((tmp_path / HOME).iterdir()) == []
        monkeypatch.setattr(journal_module.os, "pwrite", real)
    await ledger.accept(acceptance(), REQUEST)
    await ledger.close()


async def test_a_failed_write_changes_neither_disk_nor_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = await opened(tmp_path)
    await ledger.accept(acceptance(), REQUEST)

    def full(*_: object) -> int:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(journal_module.os, "pwrite", full)
        with pytest.raises(NotReady) as caught:
            await ledger.write("r1", sample_state(0, SampleState.RUNNING, 2.0))
        assert caught.value.stable_code == "ledger_unavailable"
    assert states(await ledger.load("r1")) == ["queued"] * 3
    await ledger.write("r1", sample_state(1, SampleState.RUNNING, 2.0))
    assert [r["i"] for r in read_journal(tmp_path / HOME / "r1" / "journal.jsonl").records[1:]] == [1]
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
    fresh = Sample(batch.samples[2].name, batch.samples[2].seed)
    assert batch.samples[2] == fresh
    await ledger.close()
    ledger = Ledger(tmp_path, FakeClock())
    (batch,) = await ledger.open()
    assert states(batch) == ["succeeded", "succeeded", "queued"]
    await ledger.write("r1", sample_state(2, SampleState.SUCCEEDED, 9.0))
    await ledger.end("r1", b"second")
    assert await ledger.response("r1") == b"second"
    assert (await ledger.load("r1")).state is BatchState.SUCCEEDED
    await ledger.close()


async def test_memory_of_ended_batches_is_bounded(tmp_path: Path) -> None:
    for n in range(4):
        await ran(tmp_path, f"r{n}")
    ledger = Ledger(tmp_path, FakeClock(), details=2)
    await ledger.open()
    for n in range(4):
        await ledger.load(f"r{n}")
    assert list(ledger._details) == ["r2", "r3"]
    await ledger.close()


async def test_an_expired_batch_leaves_a_tombstone_and_forgetting_frees_the_id(tmp_path: Path) -> None:
    await ran(tmp_path)
    (tmp_path / "r1" / "a").mkdir(parents=True)
    (tmp_path / "r1" / "a" / "vision.jpg").write_bytes(b"x" * 1000)
    ledger = await opened(tmp_path)
    await ledger.expire("r1")
    assert not (tmp_path / "r1").exists()
    assert [p.name for p in (tmp_path / HOME / "r1").iterdir()] == ["summary.json"]
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
