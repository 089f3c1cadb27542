"""Restart: what a starting service makes of the batches that an earlier process left. Blocking, once per start.

Samples that ran or staged are failed `interrupted`. Queued ones too, because the caller of a blocking POST is gone; in
a batch submitted asynchronously they still wait. A batch whose rows can't be trusted is set aside as damaged: it is
reported, it never stops the start, and retention removes it in time. Where the disk is full, retention runs first.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import structlog

from cosmos3_serve.contract.records import SampleState
from cosmos3_serve.errors import SampleCode
from cosmos3_serve.generator.ledger import changes, queries
from cosmos3_serve.generator.ledger.age import LedgerClock
from cosmos3_serve.generator.ledger.batch import Batch, Record, Summary, sample_failed
from cosmos3_serve.generator.ledger.database import Connection, is_full, transaction
from cosmos3_serve.generator.ledger.files import PRIVATE, REQUEST, BatchFiles, remove, sync_directory
from cosmos3_serve.generator.ledger.migrate import leftovers, migrate

log = structlog.get_logger(__name__)
INTERRUPTED = "the service stopped while this sample was running"
NEVER_STARTED = "the service stopped before this sample started, and its caller is gone"


Overdue = Callable[[Sequence[Summary], float], list[str]]


def restart(
    connection: Connection, output_root: Path, clock: LedgerClock, now: float, overdue: Overdue
) -> tuple[list[Summary], list[Batch]]:
    """Every batch: summaries of those that are over, and the open ones, settled.

    Args:
        overdue: which of the ended batches retention would remove when the ledger's clock reads so.

    Raises:
        OSError, sqlite3.Error: disk trouble.
    """
    clock.resume(queries.clock(connection))
    try:
        return _restart(connection, output_root, clock, now, [])
    except (OSError, sqlite3.Error) as error:
        due = overdue(queries.ended(connection), clock.now()) if is_full(error) else []
        if not due:
            raise
        log.warning("output_root_full_at_start", removed=len(due))
        for request_id in due:
            BatchFiles(output_root, request_id).remove_all()
        return _restart(connection, output_root, clock, now, due)


def _restart(
    connection: Connection, output_root: Path, clock: LedgerClock, now: float, removed: Sequence[str]
) -> tuple[list[Summary], list[Batch]]:
    remove(output_root / PRIVATE / "staging")
    home = output_root / PRIVATE / "ledger"
    home.mkdir(exist_ok=True, mode=0o700)
    for path in (home.parent, output_root, output_root.parent):
        sync_directory(path)
    folders = sorted(home.iterdir())
    for path in leftovers(folders):
        remove(path)
    migrate(connection, output_root, folders, now=now, age=clock.now())
    summaries, batches = transaction(connection, lambda c: _settle(c, output_root, clock.now(), now, removed))
    kept = {summary.request_id for summary in summaries if summary.expired_at is None}
    expired = {summary.request_id for summary in summaries if summary.expired_at is not None}
    _tidy(output_root, kept | {batch.request_id for batch in batches}, expired)
    return summaries, batches


def _settle(
    connection: Connection, output_root: Path, age: float, now: float, removed: Sequence[str]
) -> tuple[list[Summary], list[Batch]]:
    for request_id in removed:
        changes.expire(connection, request_id, now)
    batches: list[Batch] = []
    for row in queries.open_batches(connection):
        if row.batch is None:
            log.error("ledger_batch_damaged", reason=row.damage)
            changes.set_aside(connection, row.id, row.damage or "", at=now, age=age)
        elif row.batch.seq == 1 and not (BatchFiles(output_root, row.request_id).home / REQUEST).exists():
            changes.forget(connection, row.request_id)  # its acceptance failed, and its caller was told so
        else:
            records = interruptions(row.batch, now)
            changes.append(connection, row.request_id, records)
            for record in records:
                row.batch.apply(record)
            batches.append(row.batch)
    changes.tick(connection, age, now)
    return queries.ended(connection), batches


def _tidy(output_root: Path, kept: Collection[str], expired: Collection[str]) -> None:
    """Remove what a stop in the middle of an acceptance or an expiry left behind."""
    for path in (output_root / PRIVATE / "ledger").iterdir():
        if path.name not in kept:
            remove(path)
    with os.scandir(output_root) as entries:
        names = {entry.name for entry in entries}
    for name in names.intersection(expired):
        BatchFiles(output_root, name).remove_all()


def interruptions(batch: Batch, now: float) -> list[Record]:
    """What a stop of the service means for each sample that has not ended."""
    records = []
    for index, sample in enumerate(batch.samples):
        if sample.state in (SampleState.RUNNING, SampleState.STAGING):
            records.append(sample_failed(index, SampleCode.INTERRUPTED, INTERRUPTED, now))
        elif sample.state is SampleState.QUEUED and not batch.detached:
            records.append(sample_failed(index, SampleCode.INTERRUPTED, NEVER_STARTED, now))
    return records
