"""The queue file: small, readable beside a running worker, and no loss when it is lost."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from cosmos3_serve.errors import ServiceFailure, UsageError
from cosmos3_serve.queue.database import QueueDatabase, folder_of
from cosmos3_serve.queue.records import FailedSample, Limits, PartResult, PartStatus, Plan, PlannedPart


def plan_of(parts: int, queue_id: str = "q") -> Plan:
    return Plan(
        queue_id=queue_id,
        created_at=0.0,
        source="in",
        source_sha256="0" * 64,
        limits=Limits(),
        parts=tuple(
            PlannedPart(name=f"{i:05}", request_id=f"q{i}", samples=1, bytes=1, sha256="0" * 64) for i in range(parts)
        ),
    )


def result(number: int) -> PartResult:
    failed = (FailedSample(name="s" * 100, code="guardrail_blocked", message="m" * 300),)
    return PartResult(
        name=f"{number:05}", status=PartStatus.PARTIAL, samples=1, succeeded=0, manifest_sha256="0" * 64, failed=failed
    )


def test_what_was_written_is_there_again(tmp_path: Path) -> None:
    with QueueDatabase(tmp_path) as database:
        database.load_plan(plan_of(3))
        database.keep_options({"endpoint": ["http://a"]})
        database.begin("00001", worker="w", endpoint="http://a")
        database.progress({"00001": 5}, 2.5)
        database.stop("00002", why="unreachable: away", counted=True)
        database.end([result(0)])
    with QueueDatabase(tmp_path) as database:
        database.load_plan(plan_of(3))
        first, second, third = database.rows()
        assert first.result == result(0)
        assert (second.worker, second.endpoint, second.done) == ("w", "http://a", 5)
        assert (third.attempts, third.why) == (1, "unreachable: away")
        assert (database.rate(), database.options()) == (2.5, {"endpoint": ["http://a"]})
        database.load_plan(plan_of(2, "another"))
        assert [row.result for row in database.rows()] == [None, None]


def test_two_processes_at_once(tmp_path: Path) -> None:
    with QueueDatabase(tmp_path) as one, QueueDatabase(tmp_path) as two:
        for database in (one, two):
            database.load_plan(plan_of(4))
        one.end([result(0)])
        two.end([result(1)])
        assert [row.result is not None for row in one.rows()] == [True, True, False, False]


def test_ten_thousand_parts_that_all_failed_stay_below_20_mb(tmp_path: Path) -> None:
    """More than 10,000 samples can ever make of it: each a part of its own, with a long message."""
    with QueueDatabase(tmp_path) as database:
        database.load_plan(plan_of(10_000))
        for start in range(0, 10_000, 500):
            database.end([result(number) for number in range(start, start + 500)])
        size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert size < 20_000_000


def test_a_damaged_file_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "queue.sqlite").write_bytes(b"no database at all, but long enough to be looked at" * 100)
    with pytest.raises(ServiceFailure) as found:
        QueueDatabase(tmp_path)
    assert found.value.stable_code == "queue_file_damaged"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError) as found:
        QueueDatabase(tmp_path / "file" / "queue")
    assert found.value.stable_code == "queue_file_unusable"


def test_it_is_written_ahead_and_readable_meanwhile(tmp_path: Path) -> None:
    with QueueDatabase(tmp_path) as database:
        database.load_plan(plan_of(1))
        with sqlite3.connect(tmp_path / "queue.sqlite") as other:
            assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert other.execute("SELECT count(*) FROM parts").fetchone() == (1,)


def test_one_folder_for_each_place(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    assert folder_of("s3://b/out", None, environ) == folder_of("s3://b/out/", None, environ)
    assert folder_of("s3://b/out", None, environ) != folder_of("s3://b/other", None, environ)
    assert folder_of("/out", tmp_path / "runs").is_relative_to(tmp_path / "runs")


def test_a_full_disk_is_a_failure_with_a_name(tmp_path: Path) -> None:
    with QueueDatabase(tmp_path) as database:
        database.load_plan(plan_of(1000))
        pages = database._db.execute("PRAGMA page_count").fetchone()[0]
        database._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(ServiceFailure) as found:
            database.end([result(number) for number in range(1000)])
        assert found.value.stable_code == "queue_file_failed"
        assert [row.result for row in database.rows()] == [None] * 1000, "all or nothing"
