"""Every command answers --help and fails in words; `npa workbench cosmos3` is the same tree."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from cosmos3_serve.cli import main, serve
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


def test_dry_run_prints_the_settings_and_starts_nothing(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv("NPA_COSMOS3_RAY_MAX_BATCH_SIZE", "7")
    monkeypatch.setenv("NPA_COSMOS3_RAY_TOKEN", "right-token-123")
    monkeypatch.setenv("NPA_IMAGE_SOURCE_SHA", "a" * 40)
    flags = ["--engine", "diffusers", "--checkpoint", "tiny", "--no-guardrails", "--port", "0", "--dry-run"]
    assert run("ray-serve", *flags, "--output-path", str(tmp_path / "out")) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["max_batch_size"] == 7
    assert printed["guardrails"] is False
    assert printed["engine"] == "diffusers"
    assert [(one["name"], one["state"]) for one in printed["files"]] == [("tiny", "to build")]
    assert list(tmp_path.iterdir()) == [], "a dry run leaves nothing behind"


@pytest.mark.parametrize("installed", [True, False])
def test_the_seeds_command_without_an_engine_names_both_ways_out(
    installed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NPA_COSMOS3_FRAMEWORK_PYTHON", "no/such/python")
    monkeypatch.delenv("COSMOS3_ENGINE", raising=False)
    if not installed:
        monkeypatch.setattr(serve.importlib.util, "find_spec", lambda name: None)
    assert run("ray-serve", "--world-size", "1", "--max-batch-size", "4") == 3
    said = capsys.readouterr().err
    assert "`framework`" in said and "COSMOS3_ENGINE=diffusers" in said and "NPA_COSMOS3_FRAMEWORK_PYTHON" in said
    assert ("pip install '.[diffusers]'" in said) is not installed


def test_the_seeds_command_with_the_environments_engine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What the README calls the one line that makes it work; --dry-run, so that nothing starts."""
    for name, value in {"COSMOS3_ENGINE": "diffusers", "NPA_COSMOS3_RAY_GUARDRAILS": "off"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NPA_COSMOS3_RAY_CHECKPOINT", "tiny")
    monkeypatch.setenv("NPA_COSMOS3_RAY_TOKEN", "right-token-123")
    monkeypatch.setenv("NPA_COSMOS3_RAY_OUTPUT_DIR", str(tmp_path))
    monkeypatch.setenv("NPA_COSMOS3_RAY_PORT", "0")
    monkeypatch.setenv("NPA_IMAGE_SOURCE_SHA", "a" * 40)
    line = ["workbench", "cosmos3", "ray-serve", "--world-size", "1", "--max-batch-size", "4", "--dry-run"]
    assert main.run(main.build_npa(), "npa", line) == 0
    assert json.loads(capsys.readouterr().out)["engine"] == "diffusers"


def test_an_engine_that_is_not_installed_names_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StartRefused) as caught:
        resolve_engine(GeneratorSettings(engine="diffusers"), {})
    assert "diffusers and ray" in caught.value.detail and "'.[diffusers]'" in caught.value.remedy


def test_version_and_tables_are_data_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    for command, key in (("version", "cosmos3-serve"), ("settings", "settings"), ("errors", "errors")):
        assert run(command, "--json") == 0
        assert key in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_survives_a_thread_that_outlives_the_interpreter(code: int) -> None:
    """A library that aborts once the interpreter is gone stands in for obstore's threads."""
    program = f"""
import atexit, ctypes, sys, types
sys.modules["obstore"] = types.ModuleType("obstore")
abort = ctypes.CFUNCTYPE(None)(ctypes.CDLL(None).abort)
ctypes.pythonapi.Py_AtExit(abort)
atexit.register(print, "cleaned up")
from cosmos3_serve.cli.main import leave
print("said")
leave({code})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (code, "said\ncleaned up\n"), done.stderr


@pytest.mark.parametrize("argv", [[], ["batch"], ["reasoner"]])
def test_a_group_alone_prints_its_help_and_no_failure(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*argv) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("Usage: cosmos3") and "failed" not in said.err.splitlines()[0]


@pytest.mark.parametrize("argv", [["-h"], ["batch", "-h"], ["ray-batch", "-h"]])
def test_h_is_help(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*argv) == 0
    assert capsys.readouterr().out.startswith("Usage: cosmos3")


def test_version_is_also_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("cosmos3-serve ")


def test_no_summary_of_a_command_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([], ["batch"], ["bench"], ["reasoner"], ["deploy"]):
        run(*argv, "--help")
        assert "..." not in capsys.readouterr().out.split("Commands:")[1]


def test_a_wrong_setting_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ray-serve", "--port", "80") == 2
    assert capsys.readouterr().err.count("must be 0 or at least 1024") == 1


@pytest.mark.parametrize(("given", "bytes_"), [("16GiB", 16 * 1024**3), ("2 MB", 2_000_000), ("5000000", 5_000_000)])
def test_bytes_are_accepted_and_shown_with_a_unit(
    given: str, bytes_: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COSMOS3_CLIENT_SPOOL_BYTES", given)
    assert loaded_spool_bytes(given) == bytes_
    run("ray-batch", "--help")
    assert "16GiB" in capsys.readouterr().out


def loaded_spool_bytes(given: str) -> int:
    from cosmos3_serve.settings import ClientSettings

    assert ClientSettings.load().spool_bytes == ClientSettings.load({"spool_bytes": given}).spool_bytes
    return int(ClientSettings.load({"spool_bytes": given}).spool_bytes)
