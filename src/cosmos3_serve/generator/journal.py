"""Journal: one append-only file of JSON lines, each with its own checksum.

A line is `<crc32, 8 hex> <JSON object>\\n`; the object carries `seq`, counted from 1 without gaps, so that a lost line
is seen as well as an altered one. What a crash may leave is a torn tail (dropped, and cut off at the next append);
a bad line with a good one after it is damage and is reported, never guessed around.
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class JournalRead:
    """What a journal file holds.

    Attributes:
        records: the good records from the start, in order.
        size: bytes of the good part; appending continues there.
        torn: the file ends in something that is not a whole record.
        damage: why the file can't be trusted past `records`, or None.
    """

    records: list[Record] = field(default_factory=list)
    size: int = 0
    torn: bool = False
    damage: str | None = None


def encode_record(seq: int, record: Mapping[str, Any]) -> bytes:
    """One line. Raises ValueError for NaN or infinity, TypeError for what JSON can't say."""
    body = json.dumps({"seq": seq, **record}, separators=(",", ":"), allow_nan=False).encode("ascii")
    return b"%08x %s\n" % (zlib.crc32(body), body)


def decode_record(line: bytes) -> Record | None:
    """The record of one line, or None if the line is not whole and unaltered."""
    if len(line) < 12 or line[8:9] != b" " or line[-1:] != b"\n":
        return None
    body = line[9:-1]
    if line[:8] != b"%08x" % zlib.crc32(body):
        return None
    try:
        record = json.loads(body)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("seq"), int) else None


def _hides_record(line: bytes) -> bool:
    """Whether a good record ends this bad line: then the newline before it was altered, and that is no torn tail."""
    start = line.rfind(b' {"seq":')
    return start > 8 and decode_record(line[start - 8 :]) is not None


def read_journal(path: Path) -> JournalRead:
    """Read a journal as far as it can be trusted. Raises OSError only when the file can't be read."""
    records: list[Record] = []
    size = 0
    bad_at: int | None = None
    with path.open("rb") as stream:
        for line in stream:
            record = decode_record(line)
            if record is None:
                if _hides_record(line):
                    return JournalRead(records, size, damage="altered record before a good one")
                bad_at = size if bad_at is None else bad_at
                continue
            if bad_at is not None:
                return JournalRead(records, size, damage=f"altered record before record {record['seq']}")
            if record["seq"] != len(records) + 1:
                return JournalRead(records, size, damage=f"record {len(records) + 1} is missing")
            records.append(record)
            size += len(line)
    return JournalRead(records, size, torn=bad_at is not None)


class Journal:
    """The writing end of one journal. Methods block: call them from a thread. Safe to use from several threads."""

    def __init__(self, path: Path, *, seq: int = 0, size: int = 0) -> None:
        self.path = path
        self.seq = seq
        self._size = size
        self._lock = threading.Lock()

    @classmethod
    def resume(cls, path: Path, read: JournalRead) -> Journal:
        """Continue a journal after the records of `read`."""
        return cls(path, seq=len(read.records), size=read.size)

    def append(self, records: Sequence[Mapping[str, Any]], *, sync: bool) -> int:
        """Write the records together and return the last `seq`; with `sync` they are on disk when this returns.

        On failure nothing counts as written: the next append starts where this one did.

        Raises:
            OSError: the disk is full, read-only or failing.
            ValueError, TypeError: a record that JSON can't say; nothing was written.
        """
        with self._lock:
            lines = b"".join(encode_record(self.seq + i, record) for i, record in enumerate(records, start=1))
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # A torn tail, or what a failed append left behind, must not survive beneath shorter new lines.
                if os.fstat(descriptor).st_size != self._size:
                    os.ftruncate(descriptor, self._size)
                write_all(descriptor, lines, self._size)
                if sync:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self._size += len(lines)
            self.seq += len(records)
            return self.seq


def write_all(descriptor: int, data: bytes, offset: int) -> None:
    """`pwrite` until everything is written."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def sync_directory(path: Path) -> None:
    """Make renames and new names inside `path` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, data: bytes) -> None:
    """Write a whole file so that a reader, or a crash, sees either all of it or none; durable on return."""
    part = path.with_name(path.name + ".part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        try:
            write_all(descriptor, data, 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
