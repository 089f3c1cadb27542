"""Disks that fail: what the ledger's files and its database meet on a full or broken one."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cosmos3_serve.generator.ledger import database, files


@contextmanager
def failing_disk(monkeypatch: pytest.MonkeyPatch, *, full: bool = True, rows_only: bool = False) -> Iterator[None]:
    """Neither files nor rows can be written: no space (`full`), else I/O errors. With `rows_only` files can be."""

    def write(*_: object) -> int:
        raise OSError(errno.ENOSPC if full else errno.EIO, "as told")

    def transaction(connection: sqlite3.Connection, work: Any) -> Any:
        connection.execute("BEGIN")
        try:
            work(connection)
        finally:
            connection.execute("ROLLBACK")
        error = sqlite3.OperationalError("as told")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL if full else sqlite3.SQLITE_IOERR
        error.sqlite_errorname = "SQLITE_FULL" if full else "SQLITE_IOERR"
        raise error

    with monkeypatch.context() as patch:
        if not rows_only:
            patch.setattr(files.os, "write", write)
        patch.setattr(database, "transaction", transaction)
        yield
