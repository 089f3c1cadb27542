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
