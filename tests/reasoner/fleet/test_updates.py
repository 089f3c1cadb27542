"""Readers follow the log by number and learn when they missed something."""

from cosmos3_serve.reasoner.fleet.updates import Update, UpdateKind, UpdateLog


def news(*subjects: str) -> list[Update]:
    return [Update(UpdateKind.LEASE, s) for s in subjects]


def log_of(count: int, capacity: int = 4) -> UpdateLog:
    log = UpdateLog(capacity)
    for row in news(*(str(i) for i in range(count))):
        log.append(row)
    return log


def test_a_reader_gets_each_row_once() -> None:
    log = log_of(3)
    assert log.since(0, 2) == (news("0", "1"), 2, False)
    assert log.since(2, 2) == (news("2"), 3, False)
    assert log.since(3, 2) == ([], 3, False)


def test_a_reader_that_fell_behind_learns_it() -> None:
    log = log_of(6)
    assert log.since(1, 10) == (news("2", "3", "4", "5"), 6, True)
    assert log.since(2, 10) == (news("2", "3", "4", "5"), 6, False)


def test_a_reader_of_a_lost_log_starts_over() -> None:
    assert log_of(2).since(40, 10) == (news("0", "1"), 2, True)
