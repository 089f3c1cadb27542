"""The way into the framework's interpreter: found, checked, entered with the same settings."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from cosmos3_serve.errors import StartRefused
from cosmos3_serve.generator.engines.framework import interpreter
from cosmos3_serve.settings import GeneratorSettings


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_environment_names_it_else_the_images_place() -> None:
    assert interpreter.framework_python({}) == Path(interpreter.DEFAULT_PYTHON)
    assert interpreter.framework_python({interpreter.PYTHON_ENV: " /x/python "}) == Path("/x/python")


def test_settings_survive_the_way_through_the_environment() -> None:
    settings = GeneratorSettings(
        engine="framework", guardrails=False, port=0, max_num_seqs=3, framework_args=('a=["x y", 1]', "b=true")
    )
    assert GeneratorSettings.load(environ=interpreter.environment_of(settings)) == settings


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo '[\"ray\"]'", "lacks ray"),
        ("exit 3", "cannot be run"),
        ("echo Traceback", "cannot be run"),
    ],
)
def test_an_interpreter_that_cannot_serve_is_refused_before_it_is_entered(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(StartRefused, match=said) as refused:
        interpreter.check(script(tmp_path / "python", text))
    assert refused.value.stable_code == "engine_not_found"
    assert "--engine diffusers" in refused.value.remedy and interpreter.PYTHON_ENV in refused.value.remedy


def test_one_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartRefused, match="not on this machine"):
        interpreter.check(tmp_path / "python")


def test_handing_over_becomes_the_command_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = script(tmp_path / "python", "echo '[]'")
    became: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *call: became.append(call))
    environ = {interpreter.PYTHON_ENV: str(python), "KEPT": "1", "COSMOS_TRAINING": "1"}
    interpreter.hand_over(GeneratorSettings(engine="framework", guardrails=False), ["--json"], environ)
    ((path, command, environment),) = became
    assert path == python and command == [str(python), "-m", "cosmos3_serve.cli.main", "ray-serve", "--json"]
    assert environment["COSMOS_TRAINING"] == "0" and environment["KEPT"] == "1"
    assert environment["NPA_COSMOS3_RAY_GUARDRAILS"] == "false" and environment["COSMOS3_ENGINE"] == "framework"


def test_it_is_entered_once_only(tmp_path: Path) -> None:
    python = script(tmp_path / "python", "echo '[]'")
    environ = {interpreter.PYTHON_ENV: str(python), interpreter.HANDED_ENV: "1"}
    with pytest.raises(StartRefused, match="has no cosmos_framework"):
        interpreter.hand_over(GeneratorSettings(engine="framework"), [], environ)


def test_our_own_interpreter_is_examined_as_any_other() -> None:
    with pytest.raises(StartRefused, match="cosmos_framework"):
        interpreter.check(Path(sys.executable))
