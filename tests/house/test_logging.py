"""One logging system: every line ends in `service/logs.py`, and an error is logged with its traceback."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "cosmos3_serve"
FILES = sorted(SOURCE.rglob("*.py"))


def calls(path: Path) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]


def name(call: ast.Call) -> str:
    return ast.unparse(call.func)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_handlers_are_made_in_one_place(path: Path) -> None:
    if path != SOURCE / "service" / "logs.py":
        made = [name(call) for call in calls(path) if name(call) in ("logging.basicConfig", "structlog.configure")]
        made += [name(call) for call in calls(path) if name(call).endswith((".addHandler", "StreamHandler"))]
        assert not made


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_an_error_is_logged_with_its_traceback(path: Path) -> None:
    """`exception=type(error).__name__` says what was raised, `exc_info=error` also where."""
    bare = [
        call.lineno
        for call in calls(path)
        if name(call) in ("log.error", "log.exception")
        and any(word.arg == "exception" and "type(" in ast.unparse(word.value) for word in call.keywords)
    ]
    assert not bare
