"""The queue on this machine: one SQLite file for each output place, what a restarted worker would otherwise ask anew.

It holds a copy of what the output place says, and what only this machine knows: the options it was started with,
attempts, and how far running parts are. Losing it loses no work. Blocking, and safe for several threads and processes.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cosmos3_serve.client.journal import key_of
from cosmos3_serve.client.journals import default_root
from cosmos3_serve.errors import ServiceFailure, UsageError
from cosmos3_serve.queue.records import PartResult, Plan

BUSY_S = 10.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS parts (
    name TEXT PRIMARY KEY,
    samples INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    worker TEXT NOT NULL DEFAULT '',
    endpoint TEXT NOT NULL DEFAULT '',
    done INTEGER NOT NULL DEFAULT 0,
    why TEXT NOT NULL DEFAULT '',
    result TEXT
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A part as this machine knows it. `done`: samples that ended in the running attempt; `why`: it failed last."""

    name: str
    samples: int
    attempts: int
    worker: str
    endpoint: str
    done: int
    why: str
    result: PartResult | None


def folder_of(output_path: str, journal_dir: Path | None = None, environ: Mapping[str, str] | None = None) -> Path:
    """Where this machine keeps the queue of an output place."""
    environ = os.environ if environ is None else environ
    root = journal_dir / "queues" if journal_dir is not None else default_root(environ).parent / "queues"
    return root / key_of(output_path)


class QueueDatabase:
    """Context manager.

    Raises:
        UsageError: code `queue_file_unusable`: the folder cannot be written.
        ServiceFailure: code `queue_file_damaged`: it is no queue file; removing it loses no work. Every method raises
            it with code `queue_file_failed`, as when the disk is full.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "queue.sqlite"
        self._lock = threading.Lock()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")  # the store is the truth: a lost last second is asked anew
            self._db.executescript(_SCHEMA)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise self._unusable(str(error)) from None
            raise ServiceFailure(
                f"the queue file {self.path} is damaged",
                remedy="remove it; the output place holds all that is needed to continue",
                code="queue_file_damaged",
            ) from None
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(sqlite3.Error):
            self._db.close()

    def load_plan(self, plan: Plan) -> None:
        """Begin with this plan, or go on with it; rows of an earlier queue of this place go."""
        with self._writing():
            self._db.execute("BEGIN IMMEDIATE")
            if self._meta("queue_id") != plan.queue_id:
                self._db.execute("DELETE FROM parts")
                self._set_meta("queue_id", plan.queue_id)
                self._db.executemany(
                    "INSERT INTO parts (name, samples) VALUES (?, ?)", [(p.name, p.samples) for p in plan.parts]
                )

    def options(self) -> dict[str, Any]:
        """What this machine's last worker was started with."""
        with self._reading():
            found = self._meta("options")
        return dict(json.loads(found)) if found else {}

    def keep_options(self, options: Mapping[str, Any]) -> None:
        with self._writing():
            self._set_meta("options", json.dumps(options))

    def rate(self) -> float:
        """Samples a second of this machine's last worker; 0 where it is not known."""
        with self._reading():
            return float(self._meta("rate") or 0)

    def rows(self) -> list[Row]:
        with self._reading():
            found = self._db.execute(
                "SELECT name, samples, attempts, worker, endpoint, done, why, result FROM parts ORDER BY name"
            ).fetchall()
        return [
            Row(name, samples, attempts, worker, endpoint, done, why, _result(result))
            for name, samples, attempts, worker, endpoint, done, why, result in found
        ]

    def begin(self, part: str, *, worker: str, endpoint: str) -> None:
        self._write("UPDATE parts SET worker = ?, endpoint = ?, done = 0 WHERE name = ?", (worker, endpoint, part))

    def stop(self, part: str, *, why: str, counted: bool) -> None:
        """An attempt ended without a result."""
        self._write(
            "UPDATE parts SET worker = '', done = 0, why = ?, attempts = attempts + ? WHERE name = ?",
            (why, int(counted), part),
        )

    def end(self, results: Iterable[PartResult]) -> None:
        rows = [(result.model_dump_json(), result.name) for result in results]
        with self._writing():
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("UPDATE parts SET worker = '', done = 0, result = ? WHERE name = ?", rows)

    def progress(self, done: Mapping[str, int], rate: float) -> None:
        with self._writing():
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("UPDATE parts SET done = ? WHERE name = ?", [(n, name) for name, n in done.items()])
            self._set_meta("rate", repr(rate))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except sqlite3.Error as error:
                raise ServiceFailure(
                    f"the queue file {self.path} failed: {error}",
                    remedy="make room on that disk, or remove the file; then run the same command again",
                    code="queue_file_failed",
                ) from None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._reading(), self._db:
            yield

    def _write(self, statement: str, values: tuple[Any, ...]) -> None:
        with self._writing():
            self._db.execute(statement, values)

    def _meta(self, key: str) -> str | None:
        found = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if found is None else str(found[0])

    def _set_meta(self, key: str, value: str) -> None:
        self._db.execute("INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                         (key, value))  # fmt: skip

    def _unusable(self, why: str) -> UsageError:
        return UsageError(
            f"the queue file {self.path} cannot be used: {why}",
            remedy="name a writable folder with --journal-dir",
            code="queue_file_unusable",
        )


def _result(text: str | None) -> PartResult | None:
    return None if text is None else PartResult.model_validate_json(text)
