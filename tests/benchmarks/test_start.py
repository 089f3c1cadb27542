"""The start-up table has a row for every stage that the service reports, and none that it does not."""

import ast
import inspect
import os
from typing import Any

import pytest
from measure import start
from measure.result import InvalidRun

from cosmos3_serve.generator import serve


def reported() -> list[str]:
    """The stages in the order in which `generator/serve.py` names them, which is the order of a start."""
    calls = [node for node in ast.walk(ast.parse(inspect.getsource(serve))) if isinstance(node, ast.Call)]
    done = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "done"]
    named = [(call.lineno, call.args[0].value) for call in done if isinstance(call.args[0], ast.Constant)]
    assert len(named) == len(done), "a stage without a plain name"
    return [str(name) for _, name in sorted(named)]


def test_the_stages_are_those_of_the_service() -> None:
    assert list(start.STAGES) == reported()


def test_a_start_of_these_stages_is_taken_and_another_is_refused() -> None:
    class Ready:
        pid = os.getpid()

        def __init__(self, *stages: str) -> None:
            self.ready: dict[str, Any] = {"start_s": dict.fromkeys(stages, 1.0)}

    found = start.started(Ready(*reported()))  # type: ignore[arg-type]
    assert list(found) == [*reported(), "cpu_s"]
    with pytest.raises(InvalidRun, match="stage"):
        start.started(Ready(*reported()[:-1]))  # type: ignore[arg-type]
