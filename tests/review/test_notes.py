"""Notes from flags and from a file; what is no note is refused in words."""

from pathlib import Path

import pytest

from cosmos3_serve.errors import UsageError
from cosmos3_serve.review.notes import MAX_NOTE, check_used, read_notes


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "notes.json"
    file.write_text('{"a": "from the file", "b": "kept"}')
    assert read_notes(["a=x = y", "r/c= z "], file) == {"a": "x = y", "b": "kept", "r/c": "z"}


@pytest.mark.parametrize("pair", ["", "a", "=x", "a=", "a= ", "a=" + "x" * (MAX_NOTE + 1)])
def test_what_is_no_note(pair: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_notes([pair], None)
    assert caught.value.stable_code == "invalid_notes"


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', "[" * 100_000])
def test_what_is_no_notes_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "notes.json").write_text(text)
    with pytest.raises(UsageError):
        read_notes([], tmp_path / "notes.json")
    with pytest.raises(UsageError, match="cannot be read"):
        read_notes([], tmp_path / "nowhere.json")


def test_a_note_about_nothing_is_refused() -> None:
    check_used({"a": "x"}, {"a", "b"})
    with pytest.raises(UsageError, match="no such sample"):
        check_used({"c": "x"}, {"a", "b"})
