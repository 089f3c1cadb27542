"""The operator's live check as a command of its own, as an operator would run it."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHECKS = 12


def run_live_check(environ: dict[str, str], timeout_s: float = 800) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "tests/live", "-q", "-rs", "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=timeout_s)


def assert_passed(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-1000:]
    assert re.search(rf"\b{CHECKS} passed\b", done.stdout) and "skipped" not in done.stdout, done.stdout


def bare_environ() -> dict[str, str]:
    """This process's environment without anything of ours."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("NPA_", "COSMOS3_", "AWS_"))}
