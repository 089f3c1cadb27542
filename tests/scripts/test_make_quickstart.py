"""What `make quickstart` would do, as make itself says."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def recipe(*words: str, **environ: str) -> str:
    """The commands that make would run. Nothing is run."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("COSMOS3_", "MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", "-n", "quickstart", *words], cwd=ROOT, env={**kept, **environ}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_vllm_is_set_up_first_and_its_absence_stops_nothing() -> None:
    lines = recipe().splitlines()
    (setup,) = [number for number, line in enumerate(lines) if "setup-reasoner >&2" in line]
    (run,) = [number for number, line in enumerate(lines) if "/cosmos3 quickstart" in line]
    assert setup < run
    assert "||" in lines[setup]


@pytest.mark.parametrize(
    ("words", "environ"),
    [
        (["ARGS=--no-reasoner"], {}),
        (["ARGS=--json --no-reasoner"], {}),
        ([], {"COSMOS3_VLLM_PYTHON": "/opt/vllm/bin/python"}),
    ],
)
def test_it_is_not_set_up_for_nothing(words: list[str], environ: dict[str, str]) -> None:
    said = recipe(*words, **environ)
    assert "setup-reasoner" not in said
    assert "/cosmos3 quickstart" in said


# Makes an environment whose python is itself; chooses an index; notes what pip is asked, and knows no bad index.
PYTHON = """#!/bin/sh
case "$*" in
    *"-m venv"*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python";;
    *torch_index*) echo "${2:-$FAKE_INDEX}";;
    *) echo "$*" >>"$FAKE_LOG"; case "$*" in *bad.example*) exit 1;; esac;;
esac
"""


@pytest.mark.parametrize(
    ("index", "words", "asked"),
    [
        ("https://cpu.example", [], ["--index-url https://cpu.example torch"]),
        ("", [], ["--no-compile torch"]),
        ("https://cpu.example", ["TORCH_INDEX=https://mine.example"], ["--index-url https://mine.example torch"]),
        ("https://bad.example", [], ["--index-url https://bad.example torch", "--no-compile torch"]),
    ],
)
def test_torch_comes_from_the_chosen_index_and_else_from_pips_own(
    index: str, words: list[str], asked: list[str], tmp_path: Path
) -> None:
    python = tmp_path / "python3.12"
    python.write_text(PYTHON)
    python.chmod(0o755)
    environ = {"PATH": os.environ["PATH"], "FAKE_INDEX": index, "FAKE_LOG": str(tmp_path / "log")}
    venv = tmp_path / "venv"
    line = ["make", f"PYTHON={python}", f"VENV={venv}", *words, f"{venv}/.torch"]
    done = subprocess.run(line, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = [line for line in (tmp_path / "log").read_text().splitlines() if "torch" in line]
    assert len(lines) == len(asked)
    assert all(f"{words}==" in line for words, line in zip(asked, lines, strict=True))
    assert done.stdout == ""
    assert ("could not be had from https://bad.example" in done.stderr) is ("bad" in index)


def test_setting_up_leaves_stdout_to_the_command() -> None:
    """`make quickstart ARGS=--json` gives one object also where it installs first."""
    rules = (ROOT / "Makefile").read_text().split("\n\n")
    setting_up = [
        rule for rule in rules if rule.startswith(("$(VENV)/.torch:", "$(VENV)/.quickstart:", "$(VENV)/.dev:"))
    ]
    assert len(setting_up) == 3
    for line in "\n".join(setting_up).splitlines():
        if line.startswith("\t"):
            assert line.startswith(("\t@", "\t-@")), line
            assert ">&2" in line or ">/dev/null 2>&1" in line or line.startswith(("\t@touch", "\t@#")), line
