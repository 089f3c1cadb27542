"""A ledger of journals, as earlier versions wrote it, goes over once, with all that it told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.fakes import FakeClock

from cosmos3_serve.contract.views import BatchState
from cosmos3_serve.errors import NotFound, ServiceFailure
from cosmos3_serve.generator.ledger import migrate
from cosmos3_serve.generator.ledger.ledger import Ledger

OLD = Path(__file__).parent / "journals"  # written by the version before: ended, open, reopened, expired, damaged


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copytree(OLD, tmp_path / "out" / ".cosmos3" / "ledger")
    return tmp_path / "out"


async def opened(root: Path) -> Ledger:
    ledger = Ledger(root, FakeClock(1_700_000_100.0))
    await ledger.open()
    return ledger


def states(samples: Any) -> list[str]:
    return [sample.code or sample.state.value for sample in samples]


async def test_what_an_old_ledger_told_is_told_by_the_new_one(root: Path) -> None:
    ledger = await opened(root)
    ended = ledger.find("ended")
    assert ended is not None and ended.state is BatchState.FAILED and ended.tenant == "t"
    done, failed = await ledger.details("ended", results=True)
    assert (
        done.outputs == {"n": 0}
        and done.artifacts[0]["path"] == "ended/a/vision.jpg"
        and done.timings == {"queue": 1.5}
    )
    assert done.inputs == [{"field": "vision_path", "uri": "s3://b/k", "bytes": 3, "sha256": "0" * 64}]
    assert (failed.code, failed.message, failed.retryable) == ("engine_failed", "no", True)
    assert [event.type for event in await ledger.events("ended", 0)] == [
        *("batch", "sample", "batch", "sample", "sample", "sample", "end")
    ]
    assert await (await ledger.response("ended")).read() == b'{"the":"response"}'
    assert (await ledger.request("ended"))["request_id"] == "ended"

    open_batch = ledger.live("open")
    assert open_batch is not None and open_batch.detached
    assert states(open_batch.samples) == ["succeeded", "interrupted", "queued"]

    again = ledger.find("reopened")
    assert again is not None and again.state is BatchState.SUCCEEDED
    assert [event.type for event in await ledger.events("reopened", 0)].count("end") == 1

    gone = ledger.find("expired")
    assert gone is not None and gone.state is BatchState.EXPIRED
    with pytest.raises(NotFound):
        await ledger.load("expired")

    bad = ledger.find("damaged")
    assert bad is not None and bad.tenant == "t" and bad.damage is not None
    with pytest.raises(ServiceFailure):
        await ledger.load("damaged")
    await ledger.close()


async def test_the_journals_are_gone_afterwards_and_the_next_start_reads_rows(root: Path) -> None:
    await (await opened(root)).close()
    home = root / ".cosmos3" / "ledger"
    assert not [path for path in home.rglob("*") if path.name in (migrate.JOURNAL, migrate.SUMMARY)]
    assert (home / "open" / "request.json").exists()
    ledger = await opened(root)
    assert {s.request_id for s in ledger.ended()} == {"ended", "reopened", "expired", "damaged"}
    assert [batch.request_id for batch in ledger.live_batches()] == ["open"]
    await ledger.close()


async def test_a_stop_between_the_commit_and_the_removal_costs_nothing(root: Path) -> None:
    await (await opened(root)).close()
    for name in ("journal.jsonl", "summary.json"):
        shutil.copy(OLD / "ended" / name, root / ".cosmos3" / "ledger" / "ended" / name)
    ledger = await opened(root)
    assert states((await ledger.load("ended")).samples) == ["succeeded", "engine_failed"]
    assert len(await ledger.events("ended", 0)) == 7
    await ledger.close()


async def test_a_summary_of_the_wrong_type_costs_nothing_but_itself(root: Path) -> None:
    path = root / ".cosmos3" / "ledger" / "ended" / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"ended_at": None}))
    ledger = await opened(root)
    found = ledger.find("ended")
    assert found is not None and found.damage is None and found.state is BatchState.FAILED
    await ledger.close()


@pytest.mark.parametrize("name", ["journal.jsonl", "summary.json", "request.json"])
@pytest.mark.parametrize("junk", [b"", b"\0" * 300, b"[]", b'{"ended_at": null}', b"00000000 {}\n"])
async def test_no_content_of_an_old_file_stops_a_start(root: Path, name: str, junk: bytes) -> None:
    for batch in ("ended", "open", "expired"):
        (root / ".cosmos3" / "ledger" / batch / name).write_bytes(junk)
    ledger = await opened(root)
    assert ledger.find("ended") is not None and ledger.find("reopened") is not None
    await ledger.close()


async def test_killed_at_every_byte_of_an_old_journal(root: Path) -> None:
    """Whatever length the journal had at a power cut, the start works and tells a state that the batch was in."""
    home = root / ".cosmos3" / "ledger" / "ended"
    data = (home / "journal.jsonl").read_bytes()
    allowed = {("interrupted", "interrupted"), ("succeeded", "interrupted"), ("succeeded", "engine_failed")}
    for cut in range(0, len(data) + 1, 7):
        for path in (root / ".cosmos3").glob("ledger.sqlite*"):
            path.unlink()
        shutil.rmtree(home)
        shutil.copytree(OLD / "ended", home)
        (home / "summary.json").unlink()
        (home / "journal.jsonl").write_bytes(data[:cut])
        ledger = await opened(root)
        summary = ledger.find("ended")
        assert summary is not None
        if cut < data.index(b"\n") + 1:
            assert summary.damage is not None
        else:
            assert tuple(states((await ledger.load("ended")).samples)) in allowed
        await ledger.close()
