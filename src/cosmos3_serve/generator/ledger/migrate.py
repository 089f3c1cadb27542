"""Migration: a ledger of journals, as versions before the SQLite file wrote it, is read once and its journals removed.

    <output_root>/.cosmos3/ledger/<request_id>/    journal.jsonl, summary.json, request.json, response.json

A journal line is `<crc32, 8 hex> <JSON object>\\n`; the object carries `seq`, counted from 1 without gaps. A torn tail
is what a crash left and is dropped; a bad line with a good one after it is damage. Batches go over in transactions of a
few, and their journals are removed after the commit, so a crash in between costs nothing. A batch that can't be read
goes over as damaged: it is reported, its id stays refused, and retention removes it in time.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog
from pydantic import TypeAdapter, ValidationError

from cosmos3_serve.contract.views import BatchState
from cosmos3_serve.generator.ledger import changes
from cosmos3_serve.generator.ledger.batch import Record, Summary
from cosmos3_serve.generator.ledger.database import Connection, transaction
from cosmos3_serve.generator.ledger.files import BatchFiles

log = structlog.get_logger(__name__)
JOURNAL = "journal.jsonl"
SUMMARY = "summary.json"
NEW = ".new-"
GROUP = 32
UNFIT = (KeyError, IndexError, TypeError, ValueError, sqlite3.ProgrammingError, sqlite3.IntegrityError)
_SUMMARY = TypeAdapter(Summary)


class Damaged(ValueError):
    """A journal that can't be trusted."""


def migrate(connection: Connection, output_root: Path, folders: Sequence[Path], *, now: float, age: float) -> int:
    """Take over the batches of these folders; how many. Raises OSError or sqlite3.Error for disk trouble."""
    old = [path for path in folders if (path / JOURNAL).exists() or (path / SUMMARY).exists()]
    for start in range(0, len(old), GROUP):
        group = old[start : start + GROUP]

        def work(connection: Connection, group: Sequence[Path] = group) -> None:
            for path in group:
                _take_over(connection, BatchFiles(output_root, path.name), now, age)

        transaction(connection, work)
        for path in group:
            (path / JOURNAL).unlink(missing_ok=True)
            (path / SUMMARY).unlink(missing_ok=True)
    if old:
        log.info("ledger_migrated", batches=len(old))
    return len(old)


def _take_over(connection: Connection, files: BatchFiles, now: float, age: float) -> None:
    known = connection.execute("SELECT 1 FROM batch WHERE request_id = ?", (files.request_id,)).fetchone()
    if known:
        return  # a stop between the commit and the removal
    summary = _summary(files)
    if summary is not None and summary.expired_at is not None:
        _insert(connection, summary, now, age)
        return
    connection.execute("SAVEPOINT batch")
    try:
        records = read_journal(files.home / JOURNAL)
        _replay(connection, files, records, now, age)
    except (OSError, *UNFIT) as error:
        connection.execute("ROLLBACK TO batch")
        reason = str(error) if isinstance(error, Damaged) else f"a record does not fit ({type(error).__name__})"
        log.error("ledger_batch_damaged", reason=reason)
        _insert(connection, _damaged(files, summary, reason, now), now, age)
    connection.execute("RELEASE batch")


def _replay(connection: Connection, files: BatchFiles, records: Sequence[Record], now: float, age: float) -> None:
    first, request_id = records[0], files.request_id
    if first["kind"] != "accepted" or first["format"] != 1 or first["request_id"] != request_id:
        raise Damaged("the first record is not this batch's acceptance")
    changes.accept(connection, first)
    for record in records[1:]:
        match record["kind"]:
            case "ended":
                at, size = float(record["at"]), files.usage()
                state = BatchState(record["state"])
                changes.end(connection, request_id, state, at=at, age=age - (now - at), size=size)
            case "reopened":
                changes.reopen(connection, request_id, record["samples"], detached=False, at=record["at"])
            case _:  # nothing lands behind an end: it is dropped where an older version let it
                changes.append(connection, request_id, [record])


def _insert(connection: Connection, summary: Summary, now: float, age: float) -> None:
    """A batch of which nothing but the summary goes over."""
    connection.execute(
        "INSERT INTO batch (request_id, tenant, body_sha256, model, engine, created_at, ended_at, age_at, state, bytes,"
        " expired_at, damage, seq) VALUES (?, ?, ?, '', '{}', ?, ?, ?, ?, ?, ?, ?, 1)",
        (
            summary.request_id,
            summary.tenant,
            summary.body_sha256,
            summary.created_at,
            summary.ended_at,
            age - (now - summary.ended_at),
            summary.state.value,
            summary.bytes,
            summary.expired_at,
            summary.damage,
        ),
    )


def _summary(files: BatchFiles) -> Summary | None:
    """The summary, or None where there is no good one; then the journal alone decides."""
    try:
        summary = _SUMMARY.validate_json((files.home / SUMMARY).read_bytes())
    except (OSError, ValidationError):
        return None
    return summary if summary.request_id == files.request_id else None


def _damaged(files: BatchFiles, summary: Summary | None, reason: str, now: float) -> Summary:
    tenant, sha256 = (summary.tenant, summary.body_sha256) if summary else _accepted_by(files)
    return Summary(
        request_id=files.request_id,
        tenant=tenant,
        body_sha256=sha256,
        state=BatchState.FAILED,
        created_at=summary.created_at if summary else now,
        ended_at=summary.ended_at if summary else now,
        bytes=files.usage(),
        damage=reason,
    )


def _accepted_by(files: BatchFiles) -> tuple[str | None, str]:
    """Tenant and body hash of a damaged journal's first record, if that much is whole."""
    try:
        with (files.home / JOURNAL).open("rb") as stream:
            record = decode_record(stream.readline()) or {}
    except OSError:
        record = {}
    tenant, sha256 = record.get("tenant"), record.get("body_sha256")
    return tenant if isinstance(tenant, str) else None, sha256 if isinstance(sha256, str) else ""


def read_journal(path: Path) -> list[Record]:
    """The records of a journal. Raises Damaged, or OSError when it can't be read."""
    records: list[Record] = []
    torn = False
    with path.open("rb") as stream:
        for line in stream:
            record = decode_record(line)
            if record is None:
                if _hides_record(line):
                    raise Damaged("altered record before a good one")
                torn = True
            elif torn:
                raise Damaged(f"altered record before record {record['seq']}")
            elif record["seq"] != len(records) + 1:
                raise Damaged(f"record {len(records) + 1} is missing")
            else:
                records.append(record)
    if not records:
        raise Damaged("the journal holds no record")
    return records


def decode_record(line: bytes) -> Record | None:
    """The record of one line, or None if the line is not whole and unaltered."""
    if len(line) < 12 or line[8:9] != b" " or line[-1:] != b"\n":
        return None
    body = line[9:-1]
    if line[:8] != b"%08x" % zlib.crc32(body):
        return None
    try:
        record: Any = json.loads(body)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("seq"), int) else None


def _hides_record(line: bytes) -> bool:
    """Whether a good record ends this bad line: then the newline before it was altered, and that is no torn tail."""
    start = line.rfind(b' {"seq":')
    return start > 8 and decode_record(line[start - 8 :]) is not None


def leftovers(folders: Sequence[Path]) -> list[Path]:
    """What an unfinished acceptance of such a version left behind."""
    return [path for path in folders if path.name.startswith(NEW) or not path.is_dir()]
