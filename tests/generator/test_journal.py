"""Journal: what a crash, a bit flip or a full disk may do to it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos3_serve.generator import journal as journal_module
from cosmos3_serve.generator.journal import Journal, decode_record, encode_record, read_journal, write_file

RECORDS: list[dict[str, Any]] = [
    {"kind": "accepted", "prompt": "é\n\u2028 ok"},
    {"kind": "sample", "i": 0},
    {"kind": "sample", "i": 1, "deep": {"a": [1, 2.5, None, True]}},
    {"kind": "ended"},
]


def written(path: Path) -> bytes:
    Journal(path).append(RECORDS, sync=True)
    return path.read_bytes()


def bare(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k != "seq"} for record in records]


def test_records_come_back_numbered_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    assert journal.append(RECORDS[:1], sync=True) == 1
    assert journal.append(RECORDS[1:], sync=False) == 4
    read = read_journal(path)
    assert bare(read.records) == RECORDS
    assert [r["seq"] for r in read.records] == [1, 2, 3, 4]
    assert (read.torn, read.damage, read.size) == (False, None, path.stat().st_size)


def test_cut_at_every_byte_leaves_the_whole_records_before_the_cut_and_can_be_continued(tmp_path: Path) -> None:
    data = written(tmp_path / "whole")
    ends = [i + 1 for i, byte in enumerate(data) if byte == 0x0A]
    path = tmp_path / "cut"
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        read = read_journal(path)
        whole = sum(end <= cut for end in ends)
        assert bare(read.records) == RECORDS[:whole]
        assert read.damage is None
        assert read.torn == (cut not in (0, *ends))
        Journal.resume(path, read).append([{"kind": "after"}], sync=False)
        again = read_journal(path)
        assert bare(again.records) == [*RECORDS[:whole], {"kind": "after"}]
        assert not again.torn


def test_every_flipped_byte_before_the_last_record_is_reported_as_damage(tmp_path: Path) -> None:
    data = written(tmp_path / "whole")
    last_line = data.rindex(b"\n", 0, len(data) - 1) + 1
    path = tmp_path / "flipped"
    for position in range(len(data)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x04]) + data[position + 1 :])
        read = read_journal(path)
        if position < last_line:
            assert read.damage is not None, position
            assert bare(read.records) == RECORDS[: len(read.records)]
        else:
            assert read.torn and bare(read.records) == RECORDS[:-1]


def test_a_missing_line_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    lines = written(path).splitlines(keepends=True)
    path.write_bytes(lines[0] + b"".join(lines[2:]))
    read = read_journal(path)
    assert read.damage == "record 2 is missing"
    assert len(read.records) == 1


def test_tail_of_zeros_is_torn_not_damage(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(written(path) + bytes(4096))
    read = read_journal(path)
    assert read.torn and read.damage is None and len(read.records) == 4


def test_full_disk_in_the_middle_of_an_append_costs_nothing_but_that_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.append(RECORDS[:2], sync=True)
    real = os.pwrite

    def half(descriptor: int, data: memoryview, offset: int) -> int:
        real(descriptor, data[: len(data) // 2], offset)
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr(journal_module.os, "pwrite", half)
    with pytest.raises(OSError, match="disk full"):
        journal.append([{"kind": "a much longer record " * 20}], sync=True)
    monkeypatch.setattr(journal_module.os, "pwrite", real)
    assert journal.append(RECORDS[2:], sync=True) == 4
    assert bare(read_journal(path).records) == RECORDS


def test_what_json_cannot_say_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.append(RECORDS[:1], sync=False)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="JSON compliant"):
        journal.append([{"ok": 1}, {"action": float("nan")}], sync=False)
    assert path.read_bytes() == before
    assert journal.append([{"ok": 1}], sync=False) == 2


def test_write_file_keeps_the_old_content_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "response.json"
    write_file(path, b"old")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr(journal_module.os, "pwrite", full)
    with pytest.raises(OSError, match="disk full"):
        write_file(path, b"new and longer")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["response.json"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text().filter(lambda key: key != "seq"), JSON, max_size=5), st.integers(1, 10**9))
def test_any_json_object_survives_the_round_trip(record: dict[str, Any], seq: int) -> None:
    assert decode_record(encode_record(seq, record)) == {"seq": seq, **record}


@given(st.binary(max_size=200))
def test_no_bytes_make_the_reader_raise(line: bytes) -> None:
    decode_record(line + b"\n")
