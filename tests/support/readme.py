"""The README's code: blocks that are marked to be run, and how they are run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(mark: str) -> list[tuple[str, str]]:
    """(language, code) of the blocks below `<!-- mark -->`."""
    return re.findall(rf"<!-- {re.escape(mark)} -->\n```(bash|python)\n(.*?)```", README, re.DOTALL)


def run(language: str, code: str, folder: Path, environ: Mapping[str, str] | None = None) -> str:
    """Run one block in a folder, with nothing of our settings in its environment but `environ`; its stdout."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NPA_", "COSMOS3_", "AWS_"))}
    kept["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    command = ["bash", "-euo", "pipefail", "-c", code] if language == "bash" else [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=folder, env={**kept, **(environ or {})}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def ask_as_written(endpoint: str, token: str, folder: Path, clip: bytes) -> list[list[str]]:
    """Run the block that asks a reasoner; the words of what it printed, line by line. Blocking."""
    ((language, code),) = blocks("run: reasoner")
    (folder / "clip.mp4").write_bytes(clip)
    environ = {"COSMOS3_REASONER_ENDPOINT": endpoint, "COSMOS3_REASONER_TOKEN": token, "NO_PROXY": "127.0.0.1"}
    return [line.split() for line in run(language, code, folder, environ).splitlines()]
