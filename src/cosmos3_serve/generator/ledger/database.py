"""Database: the ledger's SQLite file, and the one thread that uses it.

Writes that arrive together share one transaction and one fsync (group commit); each runs in a savepoint of its own, so
that a refused one takes none of its neighbours along. A write is acknowledged after the commit, never before. Reads run
in the same thread between two transactions: they see committed rows only, and must be short (a page of rows).

The file is in WAL mode with `synchronous=FULL` and exclusive locking: a commit is on disk when it returns, no other
process can open the file, and no shared memory is needed, so the output root may be a network file system.
"""

from __future__ import annotations

import asyncio
import errno
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from cosmos3_serve.errors import Cosmos3Error, NotReady, StartRefused
from cosmos3_serve.generator.ledger.files import NO_SPACE, disk_error, in_use, ledger_unavailable
from cosmos3_serve.generator.ledger.schema import FORMAT, SCHEMA

T = TypeVar("T")
Connection = sqlite3.Connection
GROUP = 256
PRAGMAS = {
    "locking_mode": "exclusive",
    "auto_vacuum": "incremental",
    "journal_mode": "wal",
    "synchronous": "full",
    "wal_autocheckpoint": "1000",  # pages: the WAL stays near 4 MB
    "journal_size_limit": str(8 * 1024 * 1024),
    "cache_size": "-8192",  # KiB
    "foreign_keys": "on",
    "cell_size_check": "on",
}


@dataclass(slots=True)
class _Operation:
    work: Callable[[Connection], Any]
    writes: bool
    future: asyncio.Future[Any]
    applied: Callable[[Any], None] | None = None


class Database:
    """`open` and `close` block. `read` and `write` belong to the event loop that `open` was given."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._queue: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inode: tuple[int, int] = (0, 0)

    def open(self, loop: asyncio.AbstractEventLoop, prepare: Callable[[Connection], T]) -> T:
        """Open or make the file, let `prepare` work on it, and take operations from then on.

        Raises:
            StartRefused: `output_root_in_use`, `output_root_unusable`, `ledger_unreadable`, `ledger_format`.
        """
        connection = connect(self._path)
        try:
            self._inode = _inode(self._path)
            result = prepare(connection)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError | sqlite3.Error):
                raise refusal(error) from None
            raise
        self._loop = loop
        self._thread = threading.Thread(target=self._run, args=(connection,), name="ledger", daemon=True)
        self._thread.start()
        return result

    def close(self) -> None:
        """Finish what was asked for, then release the file."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    async def write(self, work: Callable[[Connection], T], applied: Callable[[T], None] | None = None) -> T:
        """Run `work` in a transaction and return its result once it is on disk.

        `applied` is called on the event loop with the result, in the order of the commits and also where the caller was
        cancelled meanwhile: what memory derives from the disk belongs there.

        Raises:
            NotReady: the disk is full or failing; nothing was written.
            whatever `work` raises; then nothing of it was written.
        """
        return await self._ask(work, True, applied)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work`, which must not write. Raises NotReady when the file can't be read."""
        return await self._ask(work, False, None)

    async def _ask(self, work: Callable[[Connection], T], writes: bool, applied: Callable[[T], None] | None) -> T:
        if self._thread is None:
            raise NotReady("the ledger is closed", code="ledger_unavailable", retry_after_s=5.0)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put(_Operation(work, writes, future, applied))
        return await future

    # ---- the thread

    def _run(self, connection: Connection) -> None:
        closing = False
        while not closing:
            group, closing = self._take()
            writes = [operation for operation in group if operation.writes]
            settled = list(zip(writes, self._commit(connection, writes), strict=True)) if writes else []
            settled += [(operation, _attempt(operation, connection)) for operation in group if not operation.writes]
            if settled and self._loop is not None:
                with suppress(RuntimeError):  # the loop was closed under us: nobody is left to tell
                    self._loop.call_soon_threadsafe(_settle, settled)
        connection.close()

    def _take(self) -> tuple[list[_Operation], bool]:
        """What waits, at least one; and whether the end was asked for."""
        group: list[_Operation] = []
        first = self._queue.get()
        while first is not None:
            group.append(first)
            if len(group) == GROUP:
                return group, False
            try:
                first = self._queue.get_nowait()
            except queue.Empty:
                return group, False
        return group, True

    def _commit(self, connection: Connection, writes: Sequence[_Operation]) -> list[Any]:
        """Outcomes of the operations: a value, or the exception that refuses it."""

        def work(connection: Connection) -> list[Any]:
            return [_guarded(operation, connection) for operation in writes]

        try:
            if _inode(self._path) != self._inode:
                raise OSError(errno.ESTALE, "the ledger's file was removed or replaced")
            return transaction(connection, work)
        except (OSError, sqlite3.Error) as error:
            return [failure(error)] * len(writes)


def connect(path: Path) -> Connection:
    """Open the file for this process alone, with durable commits. Raises StartRefused."""
    try:
        connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise refusal(error) from None
    try:
        for name, value in PRAGMAS.items():
            connection.execute(f"PRAGMA {name}={value}")
        connection.execute("BEGIN EXCLUSIVE")  # takes the lock, which exclusive locking then keeps
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found == 0:
            for statement in SCHEMA:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={FORMAT}")
        connection.execute("COMMIT")
        if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            raise StartRefused(
                "the file system of the output root does not carry the ledger (SQLite has no WAL there)",
                code="output_root_unusable",
                remedy="put --output-path on a local disk or a file system with POSIX locks",
            )
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.Error):
            raise refusal(error) from None
        raise
    if found not in (0, FORMAT):
        connection.close()
        raise StartRefused(
            f"the ledger has format {found}; this version reads format {FORMAT}",
            code="ledger_format",
            remedy="start the version that wrote it, or give this one its own --output-path",
        )
    return connection


def transaction(connection: Connection, work: Callable[[Connection], T]) -> T:
    """Run `work` in one transaction: all of it is on disk on return, or none of it is there."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        raise
    return result


def refusal(error: OSError | sqlite3.Error) -> Cosmos3Error:
    """Why a start can't use the file."""
    primary = _primary(error)
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return in_use()
    if primary in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return StartRefused(
            f"the ledger's file is damaged ({_name(error)})",
            code="ledger_unreadable",
            remedy="restore .cosmos3/ledger.sqlite of the output root, or repair it with sqlite3's .recover; "
            "the artifacts are untouched",
        )
    if is_full(error):
        return StartRefused(
            "the output root is full, and no batch is due to be removed",
            code="disk_full",
            remedy="free space, lower --retention-bytes or --retention-hours, or name another --output-path",
        )
    return StartRefused(
        f"the ledger can't be opened: {failure(error).detail}",
        code="output_root_unusable",
        remedy="make --output-path a writable directory with free space, on a file system with POSIX locks",
    )


def failure(error: OSError | sqlite3.Error) -> Cosmos3Error:
    """What a failed operation means to its caller: never our traceback, always retryable later."""
    if isinstance(error, OSError):
        return disk_error(error)
    if is_full(error):
        return disk_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    return ledger_unavailable(_name(error))


def is_full(error: BaseException) -> bool:
    """Whether the disk had no space for it."""
    if isinstance(error, OSError):
        return error.errno in NO_SPACE
    return isinstance(error, sqlite3.Error) and _primary(error) == sqlite3.SQLITE_FULL


def _primary(error: BaseException) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _name(error: Exception) -> str:
    return getattr(error, "sqlite_errorname", None) or type(error).__name__


def _inode(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _guarded(operation: _Operation, connection: Connection) -> Any:
    """One write in its savepoint. What the disk does concerns the whole group and is raised."""
    connection.execute("SAVEPOINT operation")
    try:
        result = operation.work(connection)
    except sqlite3.Error:
        raise
    except Exception as error:
        connection.execute("ROLLBACK TO operation")
        result = error
    connection.execute("RELEASE operation")
    return result


def _attempt(operation: _Operation, connection: Connection) -> Any:
    try:
        return operation.work(connection)
    except (OSError, sqlite3.Error) as error:
        return failure(error)
    except Exception as error:
        return error


def _settle(settled: Sequence[tuple[_Operation, Any]]) -> None:
    """On the event loop: memory first, then whoever waits."""
    for operation, outcome in settled:
        failed = isinstance(outcome, Exception)
        if not failed and operation.applied is not None:
            try:
                operation.applied(outcome)
            except Exception as error:
                outcome, failed = error, True
        if operation.future.done():
            continue
        if failed:
            operation.future.set_exception(outcome)
        else:
            operation.future.set_result(outcome)
