"""Recovery: what a starting service makes of the batches that an earlier process left. Blocking, once per start.

Samples that ran or staged are failed `interrupted`. Queued ones too, because the caller of a blocking POST is gone; in
a batch submitted asynchronously they still wait. A batch whose journal can't be trusted is kept as damaged: it is
reported, it never stops the start, and retention removes it in time.
"""

from __future__ import annotations

from pathlib import Path

from cosmos3_serve.contract.records import SampleState
from cosmos3_serve.contract.views import BatchState
from cosmos3_serve.errors import SampleCode
from cosmos3_serve.generator.batch import Batch, Record, Summary, sample_failed
from cosmos3_serve.generator.batch_files import NEW, PRIVATE, BatchFiles, remove
from cosmos3_serve.generator.journal import Journal

INTERRUPTED = "the service stopped while this sample was running"
NEVER_STARTED = "the service stopped before this sample started, and its caller is gone"


def recover(output_root: Path, now: float) -> tuple[list[Summary], list[tuple[Batch, Journal]]]:
    """Read every batch: summaries of those that are over, and the open ones, settled. Raises OSError: disk trouble."""
    home = output_root / PRIVATE / "ledger"
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    remove(output_root / PRIVATE / "staging")
    summaries: list[Summary] = []
    live: list[tuple[Batch, Journal]] = []
    for path in home.iterdir():
        if path.name.startswith(NEW) or not path.is_dir():
            remove(path)  # never acknowledged to anybody
            continue
        found = _settle(BatchFiles(output_root, path.name), now)
        if isinstance(found, Summary):
            summaries.append(found)
        else:
            live.append(found)
    return summaries, live


def _settle(files: BatchFiles, now: float) -> Summary | tuple[Batch, Journal]:
    summary = files.summary()
    if summary is not None:
        if summary.expired_at is not None:
            files.remove_content()  # a stop in the middle of an expiry
        return summary
    read = files.read()
    damage, batch = read.damage, None
    try:
        batch = Batch.replay(read.records)
    except ValueError as error:
        damage = damage or str(error)
    if batch is None or damage or batch.request_id != files.request_id:
        return _damaged(files, batch, damage or "the records are another batch's")
    if batch.ended_at is not None:
        summary = summarize(batch, files.usage())
        files.write_summary(summary)
        return summary
    journal = Journal.resume(files.journal_path, read)
    records = interruptions(batch, now)
    journal.append(records, sync=True)
    for record in records:
        batch.apply(record)
    return batch, journal


def interruptions(batch: Batch, now: float) -> list[Record]:
    """What a stop of the service means for each sample that has not ended."""
    records = []
    for index, sample in enumerate(batch.samples):
        if sample.state in (SampleState.RUNNING, SampleState.STAGING):
            records.append(sample_failed(index, SampleCode.INTERRUPTED, INTERRUPTED, now))
        elif sample.state is SampleState.QUEUED and not batch.detached:
            records.append(sample_failed(index, SampleCode.INTERRUPTED, NEVER_STARTED, now))
    return records


def summarize(batch: Batch, size: int) -> Summary:
    return Summary(
        request_id=batch.request_id,
        tenant=batch.tenant,
        body_sha256=batch.body_sha256,
        state=batch.state,
        created_at=batch.created_at,
        ended_at=batch.ended_at or batch.created_at,
        bytes=size,
    )


def _damaged(files: BatchFiles, batch: Batch | None, damage: str) -> Summary:
    changed = files.home.stat().st_mtime
    return Summary(
        request_id=files.request_id,
        tenant=batch.tenant if batch else None,
        body_sha256=batch.body_sha256 if batch else "",
        state=BatchState.FAILED,
        created_at=batch.created_at if batch else changed,
        ended_at=changed,
        bytes=files.usage(),
        damage=damage,
    )
