"""The README's code runs as written: blocks marked `<!-- run -->`, each in the same fresh directory, in order."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"<!-- run -->\n```(bash|python)\n(.*?)```", README, re.DOTALL)


def test_something_is_marked_to_run() -> None:
    assert BLOCKS
    assert README.count("<!-- run -->") == len(BLOCKS), "a marked block is neither bash nor python"


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_code_runs_as_written(number: int, tmp_path: Path) -> None:
    language, code = BLOCKS[number]
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("NPA_", "COSMOS3_", "AWS_"))}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    command = ["bash", "-euo", "pipefail", "-c", code] if language == "bash" else [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_every_make_target_named_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`?make ([a-z]+)", README)) <= targets


def test_every_command_named_exists() -> None:
    from cosmos3_serve.cli import main

    app = main.build()
    known = {c.name for c in app.registered_commands} | {g.typer_instance.info.name for g in app.registered_groups}
    assert set(re.findall(r"^cosmos3 ([a-z-]+)", README, re.MULTILINE)) <= known
