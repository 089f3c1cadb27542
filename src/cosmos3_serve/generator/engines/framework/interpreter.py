"""Interpreter: the Python that has the framework. Not the client's: transformers < 5, a torch of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from cosmos3_serve.errors import StartRefused
from cosmos3_serve.settings import GeneratorSettings

PYTHON_ENV = "NPA_COSMOS3_FRAMEWORK_PYTHON"
DEFAULT_PYTHON = "/opt/cosmos3/cosmos-framework/.venv/bin/python"
TRAINING_ENV = "COSMOS_TRAINING"  # read on import, in driver and workers; its default imports training packages
HANDED_ENV = "COSMOS3_FRAMEWORK_HANDED_OVER"
ASK_S = 120.0
DOCTOR = "`cosmos3 framework doctor` says what is missing and how to install it; docs/framework.md has the recipe"


def framework_python(environ: Mapping[str, str] | None = None) -> Path:
    """Where the interpreter is, or would be: `NPA_COSMOS3_FRAMEWORK_PYTHON`, else the image's place."""
    environ = os.environ if environ is None else environ
    return Path(environ.get(PYTHON_ENV, "").strip() or DEFAULT_PYTHON).expanduser()


def runs_here() -> bool:
    """Whether this process runs in it already."""
    return importlib.util.find_spec("cosmos_framework") is not None


def environment_of(settings: GeneratorSettings) -> dict[str, str]:
    """The settings as environment variables, so that another interpreter's command starts with exactly these."""
    found: dict[str, str] = {}
    for name, value in settings:
        env = settings.env_name(name)
        if env is None or value is None:
            continue
        if isinstance(value, bool):
            found[env] = "true" if value else "false"
        elif isinstance(value, tuple):
            found[env] = shlex.join(value)
        else:
            found[env] = str(value)
    return found


def hand_over(settings: GeneratorSettings, arguments: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Become `ray-serve` in the framework's interpreter: same process id, same terminal, same settings.

    Args:
        arguments: flags of ray-serve that are no settings, such as --json.

    Raises:
        StartRefused: `engine_not_found`: it is not there, cannot be run, or lacks this package.
    """
    python = framework_python(environ)
    check(python)
    if environ.get(HANDED_ENV):
        raise _refused(f"{python} has no cosmos_framework")
    environment = {**environ, **environment_of(settings), TRAINING_ENV: "0", HANDED_ENV: "1"}
    command = [str(python), "-m", "cosmos3_serve.cli.main", "ray-serve", *arguments]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(python, command, environment)


def check(python: Path) -> None:
    """Raises StartRefused where the service could not even start there; what it lacks beyond that it says itself."""
    if not python.is_file():
        raise _refused("the framework's interpreter is not on this machine")
    ask = (
        "import importlib.util as u, json; names = ('cosmos3_serve', 'cosmos_framework', 'ray');"
        "print(json.dumps([n for n in names if u.find_spec(n) is None]))"
    )
    try:
        asked = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, timeout=ASK_S, cwd="/")
        missing = json.loads(asked.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise _refused(f"the framework's interpreter cannot be run ({type(error).__name__})") from None
    if missing:
        raise _refused(f"the framework's interpreter lacks {', '.join(missing)}")


def _refused(text: str) -> StartRefused:
    return StartRefused(
        f"the framework engine cannot run: {text}",
        code="engine_not_found",
        remedy=f"pass --engine diffusers, or name the framework's python in {PYTHON_ENV}; {DOCTOR}",
    )
