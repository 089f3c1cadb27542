"""Queries: the statements that read the ledger, each a function of the connection; run them through `Database`.

What is read is checked by type: a row that does not fit raises `DamagedRow` here, not an error far away. Rows are
fetched before they are checked, since a statement that an exception leaves unfinished would keep the file locked.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from cosmos3_serve.contract.records import SampleState
from cosmos3_serve.contract.views import BatchEvent, BatchState
from cosmos3_serve.errors import SampleCode
from cosmos3_serve.generator.ledger.batch import ABOUT_FIELDS, RESULT_FIELDS, Batch, Sample, SampleDetail, Summary
from cosmos3_serve.generator.ledger.packed import DamagedRow, number_of, object_of, unpacked

Connection = sqlite3.Connection
S = TypeVar("S", bound=Sample)
PAGE = 256  # rows that one read takes: milliseconds of the ledger's thread
_SUMMARY = TypeAdapter(Summary)
_BATCH = "id, request_id, tenant, body_sha256, model, engine, created_at, detached, started_at, cancelled_at, seq"
_ENDED = "request_id, tenant, body_sha256, state, created_at, ended_at, bytes, expired_at, damage, age_at"


@dataclass(frozen=True, slots=True)
class Row:
    """An open batch as stored: its key, and what `Batch` needs; `damage` where that can't be read."""

    id: int
    request_id: str
    batch: Batch | None
    damage: str | None = None
    tenant: str | None = None


def ended(connection: Connection) -> list[Summary]:
    """Every batch that ended, in the order of the ends; a row that does not fit is a damaged batch."""
    rows = connection.execute(
        f"SELECT {_ENDED} FROM batch WHERE ended_at IS NOT NULL OR damage IS NOT NULL ORDER BY age_at, id"
    ).fetchall()
    return [_summary(row) for row in rows]


def _summary(row: Sequence[Any]) -> Summary:
    values = dict(zip(_ENDED.split(", "), row, strict=True))
    try:
        return _SUMMARY.validate_python(values)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors(include_input=False, include_url=False)[0]["loc"])
        return Summary(
            request_id=str(values["request_id"]),
            tenant=values["tenant"] if isinstance(values["tenant"], str) else None,
            body_sha256="",
            state=BatchState.FAILED,
            created_at=number_of(values["created_at"]),
            ended_at=number_of(values["ended_at"]),
            damage=f"the stored {where} does not fit",
            age_at=number_of(values["age_at"]),
        )


def open_batches(connection: Connection) -> list[Row]:
    """Every batch that has not ended, oldest first."""
    rows = connection.execute(
        f"SELECT {_BATCH} FROM batch WHERE ended_at IS NULL AND damage IS NULL ORDER BY created_at, id"
    ).fetchall()
    return [_row(connection, row) for row in rows]


def _row(connection: Connection, row: Sequence[Any]) -> Row:
    try:
        return Row(row[0], row[1], _batch(connection, row))
    except DamagedRow as error:
        return Row(row[0], str(row[1]), None, str(error), row[2] if isinstance(row[2], str) else None)


def batch(connection: Connection, request_id: str) -> Batch | None:
    """One batch in whatever state, without details. Raises DamagedRow."""
    row = connection.execute(f"SELECT {_BATCH}, ended_at FROM batch WHERE request_id = ?", (request_id,)).fetchone()
    if row is None:
        return None
    found = _batch(connection, row[:-1])
    found.ended_at = row[-1]
    return found


def _batch(connection: Connection, row: Sequence[Any]) -> Batch:
    key, request_id, tenant, sha256, model, engine, created_at, detached, started_at, cancelled_at, seq = row
    samples = [
        _sample(Sample, fields, i)
        for i, fields in enumerate(
            connection.execute(
                "SELECT i, name, seed, state, code FROM sample WHERE batch = ? ORDER BY i", (key,)
            ).fetchall()
        )
    ]
    if not samples:
        raise DamagedRow("its samples are missing")
    texts = (request_id, tenant, sha256, model)
    times = [time for time in (created_at, started_at, cancelled_at) if time is not None]
    if not all(isinstance(text, str) for text in texts):
        raise DamagedRow("a stored name does not fit")
    if not all(isinstance(time, int | float) for time in [created_at, *times]) or not isinstance(seq, int):
        raise DamagedRow("a stored time or number does not fit")
    return Batch(
        request_id=request_id,
        tenant=tenant,
        body_sha256=sha256,
        model=model,
        created_at=created_at,
        engine=object_of(engine),
        samples=samples,
        detached=bool(detached),
        started_at=started_at,
        cancelled_at=cancelled_at,
        seq=seq,
    )


def _sample(kind: type[S], row: Sequence[Any], expected: int, **detail: Any) -> S:
    index, name, seed, state, code = row
    try:
        if index == expected and isinstance(name, str) and isinstance(seed, int):
            return kind(name, seed, SampleState(state), None if code is None else SampleCode(code).value, **detail)
    except (ValueError, TypeError):
        pass
    raise DamagedRow(f"sample {expected} does not fit")


DetailRow = tuple[Any, ...]


def details(connection: Connection, request_id: str, start: int, *, results: bool) -> list[DetailRow]:
    """A page of samples from index `start`, at most `PAGE`, still encoded: `decoded` reads it in any thread."""
    return connection.execute(
        f"SELECT s.i, s.name, s.seed, s.state, s.code, d.about, {'d.result' if results else 'NULL'}"
        " FROM batch b JOIN sample s ON s.batch = b.id LEFT JOIN detail d ON d.batch = s.batch AND d.i = s.i"
        " WHERE b.request_id = ? AND s.i >= ? ORDER BY s.i LIMIT ?",
        (request_id, start, PAGE),
    ).fetchall()


def detail_of(connection: Connection, request_id: str, name: str) -> DetailRow | None:
    """One sample by its name, encoded."""
    row: DetailRow | None = connection.execute(
        "SELECT s.i, s.name, s.seed, s.state, s.code, d.about, d.result"
        " FROM batch b JOIN sample s ON s.batch = b.id LEFT JOIN detail d ON d.batch = s.batch AND d.i = s.i"
        " WHERE b.request_id = ? AND s.name = ?",
        (request_id, name),
    ).fetchone()
    return row


def decoded(row: DetailRow, expected: int | None = None) -> SampleDetail:
    """Raises DamagedRow."""
    detail: dict[str, Any] = {}
    for packed, names in ((row[5], ABOUT_FIELDS), (row[6], RESULT_FIELDS)):
        stored = unpacked(packed)
        detail |= {name: stored[name] for name in names if name in stored}
    return _sample(SampleDetail, row[:5], row[0] if expected is None else expected, **detail)


def events(connection: Connection, request_id: str, after: int) -> list[BatchEvent]:
    """Events numbered above `after`, in order, at most `PAGE`. Raises DamagedRow."""
    rows = connection.execute(
        "SELECT e.seq, e.type, s.name, e.state, e.code, e.at FROM batch b JOIN event e ON e.batch = b.id"
        " LEFT JOIN sample s ON s.batch = e.batch AND s.i = e.i"
        " WHERE b.request_id = ? AND e.seq > ? ORDER BY e.seq LIMIT ?",
        (request_id, after, PAGE),
    ).fetchall()
    try:
        return [
            BatchEvent(id=seq, type=kind, sample=name, state=state, code=code, at=datetime.fromtimestamp(at, UTC))
            for seq, kind, name, state, code, at in rows
        ]
    except (ValueError, TypeError, OverflowError):
        raise DamagedRow("a stored event does not fit") from None


def listed(connection: Connection, tenant: str, limit: int, before: tuple[float, str] | None) -> list[str]:
    """Ids of the tenant's batches, newest first: those before (`created_at`, `request_id`) where it is given."""
    at, last = before or (9e99, "")
    rows = connection.execute(
        "SELECT request_id FROM batch WHERE tenant = ? AND (created_at < ? OR (created_at = ? AND request_id < ?))"
        " ORDER BY created_at DESC, request_id DESC LIMIT ?",
        (tenant, at, at, last, limit),
    ).fetchall()
    return [request_id for (request_id,) in rows]


def clock(connection: Connection) -> tuple[float, float] | None:
    """The ledger's own clock as last written, and the wall clock then."""
    row = connection.execute("SELECT age, wall FROM clock").fetchone()
    return None if row is None else (number_of(row[0]), number_of(row[1]))
