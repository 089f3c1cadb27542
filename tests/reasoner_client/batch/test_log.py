"""The log of answers survives kills: torn lines, another body, a full disk."""

from pathlib import Path

import pytest

from cosmos3_serve.errors import StorageFailure
from cosmos3_serve.reasoner_client.ask import Posted
from cosmos3_serve.reasoner_client.batch.line import answered
from cosmos3_serve.reasoner_client.batch.log import AnswerLog


def line(name: str, text: str = "yes") -> dict[str, object]:
    return answered(name, Posted("r", {"choices": [text]}))


def test_every_cut_of_the_file_leaves_whole_answers(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path / "log", "a" * 64)
    assert log.open() == {}
    for name in ("one", "two", "three"):
        log.add(line(name))
    path = tmp_path / "log" / "answers.jsonl"
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        kept = AnswerLog(tmp_path / "log", "a" * 64).open()
        assert list(kept.values()) == [line(name) for name in ("one", "two", "three")][: len(kept)]
        log.add(line("after"))
        assert AnswerLog(tmp_path / "log", "a" * 64).open()["after"] == line("after"), size


def test_answers_of_another_body_are_not_taken(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path, "a" * 64)
    log.open()
    log.add(line("one"))
    assert AnswerLog(tmp_path, "b" * 64).open() == {}


def test_a_disk_that_fails_is_no_fault_of_the_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailure) as caught:
        AnswerLog(tmp_path / "file" / "log", "a" * 64).open()
    assert caught.value.stable_code == "journal_unusable"
