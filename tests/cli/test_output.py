"""One way to say no: exit codes, problem objects, never a traceback."""

import json

import pytest

from cosmos3_serve.cli import output
from cosmos3_serve.errors import (
    Cosmos3Error,
    FieldError,
    Incomplete,
    Interrupted,
    QueueFull,
    StorageFailure,
    ValidationFailed,
)


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("COSMOS3_DEBUG", raising=False)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValidationFailed("bad"), 2),
        (QueueFull("full"), 3),
        (StorageFailure("gone"), 4),
        (Incomplete("later"), 5),
        (Interrupted("stopped"), 130),
        (KeyboardInterrupt(), 130),
        (FileNotFoundError(2, "No such file or directory", "x.json"), 4),
        (RuntimeError("surprise"), 4),
    ],
)
def test_exit_codes(error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert output.report(error, command="cosmos3 x", as_json=False) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("cosmos3 x ")
    assert "Traceback" not in captured.err


def test_json_puts_exactly_one_problem_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    error = ValidationFailed("two things", errors=[FieldError("samples[0].seed", "not a number", "leave it out")])
    assert output.report(error, command="cosmos3 ray-batch", as_json=True) == 2
    problem = json.loads(capsys.readouterr().out)
    assert problem["code"] == "validation_failed"
    assert problem["exit_code"] == 2
    assert problem["errors"] == [{"field": "samples[0].seed", "message": "not a number", "remedy": "leave it out"}]


def test_people_see_fields_and_remedies(capsys: pytest.CaptureFixture[str]) -> None:
    errors = [FieldError(f"samples[{i}].seed", "no", "drop it") for i in range(30)]
    output.report(ValidationFailed("many", errors=errors, remedy="read the docs"), command="c", as_json=False)
    text = capsys.readouterr().err
    assert "samples[0].seed: no (drop it)" in text
    assert "and 10 more" in text
    assert "what to do: read the docs" in text


def test_text_from_outside_is_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    output.report(Cosmos3Error("[/bold] [red]x"), command="c", as_json=False)
    assert "[/bold] [red]x" in capsys.readouterr().err


def test_an_unexpected_failure_leaves_an_incident_with_its_traceback(tmp_path, capsys) -> None:
    try:
        raise RuntimeError("surprise")
    except RuntimeError as error:
        assert output.report(error, command="c", as_json=True) == 4
    captured = capsys.readouterr()
    (path,) = (tmp_path / "cosmos3-serve" / "incidents").glob("*.log")
    assert "RuntimeError: surprise" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert str(path) in json.loads(captured.out)["remedy"]
    assert "surprise" not in captured.err


def test_incidents_do_not_pile_up(tmp_path, capsys) -> None:
    for number in range(output.INCIDENTS_KEPT + 5):
        output.report(RuntimeError(str(number)), command="c", as_json=False)
    assert len(list((tmp_path / "cosmos3-serve" / "incidents").glob("*.log"))) == output.INCIDENTS_KEPT


def test_debug_shows_the_traceback(monkeypatch, capsys) -> None:
    monkeypatch.setenv("COSMOS3_DEBUG", "1")
    try:
        raise RuntimeError("surprise")
    except RuntimeError as error:
        output.report(error, command="c", as_json=False)
    assert "Traceback" in capsys.readouterr().err
