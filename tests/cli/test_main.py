"""Every command answers --help and fails in words; `npa workbench cosmos3` is the same tree."""

import json

import pytest
import typer

from cosmos3_serve.cli import main
from cosmos3_serve.cli.serve import resolve_engine
from cosmos3_serve.errors import StartRefused
from cosmos3_serve.settings import GeneratorSettings


def run(*argv: str) -> int:
    return main.run(main.build(), "cosmos3", argv)


def paths(app: typer.Typer) -> list[list[str]]:
    found = [[c.name or ""] for c in app.registered_commands]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        name = group.name or group.typer_instance.info.name
        found += [[str(name), *rest] for rest in paths(group.typer_instance)]
    return found


@pytest.mark.parametrize("path", paths(main.build()), ids=" ".join)
def test_every_command_explains_itself(path: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*path, "--help") == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: cosmos3 {' '.join(path)}")
    assert len(text.splitlines()[2].strip()) > 10, "the first line says what it does"


def test_a_command_line_makes_only_the_commands_that_it_names() -> None:
    app = main.build()
    everything = paths(app)
    assert paths(main._narrowed(app, ["deploy", "render"])) == [["deploy", "render"]]
    assert paths(main._narrowed(app, ["deploy"])) == [path for path in everything if path[0] == "deploy"]
    assert paths(main._narrowed(app, ["version"])) == [["version"]]
    assert paths(app) == everything


def test_npa_is_the_same_tree(capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = paths(main.build()), paths(main.build_npa())
    shared = [path for path in ours if path[0] in main.SHARED]
    assert {path[0] for path in shared} == set(main.SHARED)
    assert theirs == [*(["workbench", "cosmos3", *path] for path in ours), *(["workbench", *path] for path in shared)]


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["no-such-command"], 2),
        (["ray-serve", "--port", "abc"], 2),
        (["ray-serve", "--port", "80"], 2),
        (["ray-serve", "--no-such-flag"], 2),
        (["ray-serve", "--engine", "other"], 2),
        ([], 2),
    ],
)
def test_bad_command_lines_are_usage_errors(argv: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*argv) == code
    assert "Traceback" not in capsys.readouterr().err


def test_a_usage_error_with_json_is_one_problem_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ray-serve", "--json", "--port", "80") == 2
    problem = json.loads(capsys.readouterr().out)
    assert problem["code"] == "usage"
    assert problem["errors"][0]["field"] == "--port"


def test_dry_run_prints_the_settings_and_starts_nothing(monkeypatch, capsys) -> None:
    monkeypatch.setenv("NPA_COSMOS3_RAY_MAX_BATCH_SIZE", "7")
    assert run("ray-serve", "--engine", "diffusers", "--no-guardrails", "--port", "0", "--dry-run") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["max_batch_size"] == 7
    assert printed["guardrails"] is False
    assert printed["engine"] == "diffusers"


def test_without_an_engine_the_start_is_refused_with_both_ways_out() -> None:
    with pytest.raises(StartRefused) as caught:
        resolve_engine(GeneratorSettings(), {"NPA_COSMOS3_FRAMEWORK_PYTHON": "no/such/python"})
    assert caught.value.exit_code == 3
    assert "--engine diffusers" in caught.value.remedy
    assert "NPA_COSMOS3_FRAMEWORK_PYTHON" in caught.value.remedy


def test_version_and_tables_are_data_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    for command, key in (("version", "cosmos3-serve"), ("settings", "settings"), ("errors", "errors")):
        assert run(command, "--json") == 0
        assert key in json.loads(capsys.readouterr().out)
