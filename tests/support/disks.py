"""Disks that fail, and disks that forget: what the ledger meets on a full or broken one, or after a power cut."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
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


class ForgetfulDisk:
    """Notes what `os.fsync` made durable: the bytes of files, the names in directories. A power cut leaves no more.

    SQLite syncs its own files out of our sight: they are taken as they are where their directory's names are durable
    (its pragmas and the killed process are tested apart).
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._bytes: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._sync = os.fsync
        monkeypatch.setattr(files.os, "fsync", self._fsync)

    def _fsync(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            here = Path(f"/proc/self/fd/{descriptor}").resolve()
            self._names[found.st_ino] = {path.name: path.lstat().st_ino for path in here.iterdir()}
        else:
            self._bytes[found.st_ino] = Path(f"/proc/self/fd/{descriptor}").read_bytes()
        self._sync(descriptor)

    def after_power_cut(self, root: Path, target: Path) -> Path:
        """What a start would find of `root`, written to `target`, which is returned."""
        target.mkdir(exist_ok=True)
        for name, inode in self._names.get(root.stat().st_ino, {}).items():
            path = root / name
            if not path.exists() or path.stat().st_ino != inode:
                continue  # removed or replaced since
            if path.is_dir():
                self.after_power_cut(path, target / name)
            elif name == files.DATABASE:
                for part in root.glob(name + "*"):
                    shutil.copy(part, target / part.name)
            elif not name.startswith(files.DATABASE):
                (target / name).write_bytes(self._bytes.get(inode, b""))
        return target
