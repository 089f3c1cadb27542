"""Changes: the statements that write the ledger, each a function of the connection; run them through `Database`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cosmos3_serve.contract.views import BatchState
from cosmos3_serve.generator.ledger.batch import ABOUT_FIELDS, RESULT_FIELDS, Record
from cosmos3_serve.generator.ledger.packed import merged, text_of

Connection = sqlite3.Connection
VACUUM = 4096  # pages given back to the file system with an expiry, at most


def accept(connection: Connection, record: Mapping[str, Any]) -> None:
    """Raises ValueError or TypeError for what JSON can't say."""
    cursor = connection.execute(
        "INSERT INTO batch (request_id, tenant, body_sha256, model, engine, created_at, detached, seq)"
        " VALUES (:request_id, :tenant, :body_sha256, :model, :engine, :at, :detached, 1)",
        {**record, "engine": text_of(record["engine"])},
    )
    key = cursor.lastrowid
    connection.executemany(
        "INSERT INTO sample (batch, i, name, seed, state) VALUES (?, ?, ?, ?, 'queued')",
        ((key, i, name, seed) for i, (name, seed) in enumerate(record["samples"])),
    )
    _tell(connection, key, 1, "batch", None, BatchState.QUEUED, None, record["at"])


def append(connection: Connection, request_id: str, records: Iterable[Record]) -> bool:
    """Write changes of an open batch; False, and nothing written, where it is not open (any more)."""
    found = _open(connection, request_id)
    if found is None:
        return False
    key, seq = found
    for record in records:
        seq += 1
        match record["kind"]:
            case "sample" | "staged":
                _change(connection, key, record)
                _tell(connection, key, seq, "sample", record["i"], record["state"], record.get("code"), record["at"])
            case "started":
                connection.execute("UPDATE batch SET started_at = ? WHERE id = ?", (record["at"], key))
                _tell(connection, key, seq, "batch", None, BatchState.RUNNING, None, record["at"])
            case "cancel":
                connection.execute("UPDATE batch SET cancelled_at = ? WHERE id = ?", (record["at"], key))
            case "detached":
                connection.execute("UPDATE batch SET detached = 1 WHERE id = ?", (key,))
            case kind:
                raise ValueError(f"unknown record {kind!r}")
    connection.execute("UPDATE batch SET seq = ? WHERE id = ?", (seq, key))
    return True


def end(connection: Connection, request_id: str, state: BatchState, *, at: float, age: float, size: int) -> bool:
    """Close an open batch; False where it is not open."""
    found = _open(connection, request_id)
    if found is None:
        return False
    key, seq = found
    _tell(connection, key, seq + 1, "end", None, state, None, at)
    connection.execute(
        "UPDATE batch SET ended_at = ?, age_at = ?, state = ?, bytes = ?, seq = ? WHERE id = ?",
        (at, age, state.value, size, seq + 1, key),
    )
    return True


def reopen(connection: Connection, request_id: str, indexes: Sequence[int], *, detached: bool, at: float) -> bool:
    """Open an ended batch again: these samples forget what they came to. False where it is not ended."""
    found = connection.execute(
        "SELECT id, seq FROM batch WHERE request_id = ? AND ended_at IS NOT NULL AND expired_at IS NULL"
        " AND damage IS NULL",
        (request_id,),
    ).fetchone()
    if found is None:
        return False
    key, seq = found
    rows = [(key, index) for index in indexes]
    connection.executemany("UPDATE sample SET state = 'queued', code = NULL WHERE batch = ? AND i = ?", rows)
    connection.executemany("DELETE FROM detail WHERE batch = ? AND i = ?", rows)
    connection.execute("DELETE FROM event WHERE batch = ? AND type = 'end'", (key,))
    _tell(connection, key, seq + 1, "batch", None, BatchState.QUEUED, None, at)
    connection.execute(
        "UPDATE batch SET ended_at = NULL, age_at = NULL, state = NULL, cancelled_at = NULL, bytes = 0,"
        " detached = detached OR ?, seq = ? WHERE id = ?",
        (detached, seq + 1, key),
    )
    return True


def expire(connection: Connection, request_id: str, at: float) -> None:
    """Keep only what refuses the id. Its samples and events go."""
    connection.execute(
        "UPDATE batch SET expired_at = ?, state = 'expired', bytes = 0, damage = NULL, ended_at = ifnull(ended_at, ?)"
        " WHERE request_id = ?",
        (at, at, request_id),
    )
    for table in ("event", "detail", "sample"):
        connection.execute(
            f"DELETE FROM {table} WHERE batch = (SELECT id FROM batch WHERE request_id = ?)", (request_id,)
        )
    connection.execute(f"PRAGMA incremental_vacuum({VACUUM})")


def forget(connection: Connection, request_id: str) -> None:
    connection.execute("DELETE FROM batch WHERE request_id = ?", (request_id,))


def set_aside(connection: Connection, key: int, damage: str, *, at: float, age: float) -> None:
    """An open batch whose rows can't be read counts as ended from now on, so that retention removes it in time."""
    connection.execute(
        "UPDATE batch SET damage = ?, state = 'failed', ended_at = ?, age_at = ? WHERE id = ?", (damage, at, age, key)
    )


def tick(connection: Connection, age: float, wall: float) -> None:
    """Remember the ledger's own clock."""
    connection.execute("INSERT OR REPLACE INTO clock (id, age, wall) VALUES (1, ?, ?)", (age, wall))


def _open(connection: Connection, request_id: str) -> tuple[int, int] | None:
    found: tuple[int, int] | None = connection.execute(
        "SELECT id, seq FROM batch WHERE request_id = ? AND ended_at IS NULL AND damage IS NULL", (request_id,)
    ).fetchone()
    return found


def _change(connection: Connection, key: int, record: Record) -> None:
    index = record["i"]
    changed = connection.execute(
        "UPDATE sample SET state = ?, code = ? WHERE batch = ? AND i = ?",
        (record["state"], record.get("code"), key, index),
    )
    if changed.rowcount != 1:
        raise ValueError(f"no sample {index}")
    about = {name: record[name] for name in ABOUT_FIELDS if name in record}
    result = {name: record[name] for name in RESULT_FIELDS if name in record}
    if not about and not result:
        return
    stored = connection.execute("SELECT about, result FROM detail WHERE batch = ? AND i = ?", (key, index)).fetchone()
    old = stored or (None, None)
    connection.execute(
        "INSERT INTO detail (batch, i, about, result) VALUES (?, ?, ?, ?)"
        if stored is None
        else "UPDATE detail SET about = ?3, result = ?4 WHERE batch = ?1 AND i = ?2",
        (key, index, merged(old[0], about), merged(old[1], result)),
    )


def _tell(
    connection: Connection,
    key: int | None,
    seq: int,
    kind: str,
    index: int | None,
    state: str,
    code: str | None,
    at: float,
) -> None:
    connection.execute(
        "INSERT INTO event (batch, seq, type, i, state, code, at) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (key, seq, kind, index, str(state), code, at),
    )
