"""Doctor: what is missing in the framework's interpreter, and the command that fixes it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cosmos3_serve.errors import StartRefused
from cosmos3_serve.generator.engines.framework import examine
from cosmos3_serve.generator.engines.framework.interpreter import PYTHON_ENV, TRAINING_ENV, framework_python
from cosmos3_serve.generator.engines.framework.revision import INSTALL, prove
from cosmos3_serve.generator.guardrails.packages import ALONE
from cosmos3_serve.settings import GeneratorSettings

EXAMINE_S = 300.0
RAY = "2.60.0"
MIN_PYTHON = (3, 12)  # upstream imports typing.override although its metadata allows 3.10
# Distribution to (least, below): what upstream's metadata asks for, and what its import fails without.
BOUNDS: Mapping[str, tuple[str, str]] = {"transformers": ("4.57.1", "5"), "diffusers": ("0.39.0", "")}
SPECS: Mapping[str, str] = {
    "transformers": "transformers>=4.57.1,<5",
    "diffusers": "diffusers>=0.39.0",
    "ray": f"ray[serve]=={RAY}",
    "numpy": "numpy<2.3",
}
WHAT_FOR = {
    "torchcodec": "video inputs fail without it",
    "soundfile": "sound inputs fail without it",
    "opencv-contrib-python": "edge and blur computed from vision_path fail without it (pycocotools and webdataset too)",
    "uv": "upstream's own tools fetch with `uvx`; the service's workers are answered from its cache without it",
    **dict.fromkeys((name for name, _ in examine.GUARDED), "a start with guardrails needs it"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """`required`: the service refuses to start without it; else some requests fail, or it is for information."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    required: bool = True

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def diagnose(environ: Mapping[str, str] | None = None) -> list[Finding]:
    """Examine the framework's interpreter, whichever this one is. Takes about half a minute; starts nothing."""
    environ = os.environ if environ is None else environ
    python = framework_python(environ)
    if not python.is_file():
        fix = f"python3.12 -m venv /opt/framework && export {PYTHON_ENV}=/opt/framework/bin/python"
        return [Finding("interpreter", False, f"{python} is not there", fix)]
    try:
        facts = _ask(python, environ)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        return [Finding("interpreter", False, f"{python} cannot be examined ({type(error).__name__})", "reinstall it")]
    guardrails = bool(GeneratorSettings.load(environ=environ).guardrails)
    return [Finding("interpreter", True, str(python)), *judge(facts, guardrails=guardrails), *_proved(facts)]


def judge(facts: Mapping[str, Any], *, guardrails: bool = True) -> list[Finding]:
    """The facts of `examine.facts` as findings, in the order in which to fix them.

    Args:
        guardrails: whether the service will start with them: only then are their packages required.
    """
    return [*_basics(facts), *_packages(facts, guardrails), *_programs(facts), *_imports(facts), *_device(facts)]


def _ask(python: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    asked = subprocess.run(
        [str(python), examine.__file__],
        capture_output=True,
        text=True,
        timeout=EXAMINE_S,
        cwd="/",
        env={**environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    facts: dict[str, Any] = json.loads(asked.stdout.strip().splitlines()[-1])
    return facts


def _basics(facts: Mapping[str, Any]) -> Iterator[Finding]:
    found = tuple(facts["python"])
    text = ".".join(map(str, found))
    wanted = ".".join(map(str, MIN_PYTHON))
    fix = f"make the environment with Python {wanted} or later: python{wanted} -m venv …"
    yield Finding("python", found[:2] >= MIN_PYTHON, f"{text}, {wanted} or later is needed", fix)
    training = facts["training"]
    detail = f"is {training}" if training is not None else "is unset; the service sets it to 0 for all its processes"
    yield Finding(TRAINING_ENV, training in (None, "0"), detail, f"export {TRAINING_ENV}=0", required=False)
    yield Finding(
        "cosmos3-serve",
        facts["cosmos3_serve"],
        _there(facts["cosmos3_serve"]),
        "pip install '.[framework]' in a checkout of cosmos3-serve",
    )
    yield Finding(
        "cosmos-framework", bool(facts["framework"]["package"]), _there(facts["framework"]["package"]), INSTALL
    )


def _there(found: object) -> str:
    return "installed" if found else "is not installed"


def _packages(facts: Mapping[str, Any], guardrails: bool) -> Iterator[Finding]:
    optional = {name for name, _ in (*examine.OPTIONAL, *(() if guardrails else examine.GUARDED))}
    for name, found in facts["packages"].items():
        spec = SPECS.get(name, name)
        if not found["importable"]:
            why = f"is not installed; {WHAT_FOR[name]}" if name in WHAT_FOR else "is not installed"
            alone = "--no-deps " if name in ALONE else ""
            yield Finding(name, False, why, f"pip install {alone}'{spec}'", name not in optional)
            continue
        number = found["version"] or "unknown"
        wrong = _out_of_bounds(name, number)
        yield Finding(
            name, not wrong, f"{number}{wrong}", f"pip install '{spec}'" if wrong else "", name not in optional
        )


def _programs(facts: Mapping[str, Any]) -> Iterator[Finding]:
    found = facts["programs"]
    yield Finding(
        "uvx", bool(found["uvx"]), found["uvx"] or f"is not found; {WHAT_FOR['uv']}", "pip install uv", required=False
    )
    missing = [what for name, what in (("compiler", "a C compiler"), ("headers", "Python.h")) if not found[name]]
    detail = f"{' and '.join(missing)} not found; torch.compile, which upstream turns on, needs both"
    yield Finding(
        "compiler",
        not missing,
        detail if missing else str(found["compiler"]),
        "apt-get install gcc python3-dev, or start with --framework-arg use_torch_compile=false",
        required=False,
    )


def _out_of_bounds(name: str, number: str) -> str:
    if name == "ray" and number != RAY:
        return f"; the service was written for {RAY} exactly"
    least, below = BOUNDS.get(name, ("", ""))
    if least and _numbers(number) < _numbers(least):
        return f"; {least} or later is needed"
    if below and _numbers(number) >= _numbers(below):
        return f"; it must be below {below}"
    return ""


def _numbers(text: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _imports(facts: Mapping[str, Any]) -> Iterator[Finding]:
    for name, error in (facts["imports"] or {}).items():
        missing = re.match(r"ModuleNotFoundError: No module named '([\w.]+)'", error or "")
        fix = f"pip install the distribution of {missing[1].split('.')[0]}" if missing else "see docs/framework.md"
        yield Finding(f"import {name}", error is None, error or "works", "" if error is None else fix)


def _device(facts: Mapping[str, Any]) -> Iterator[Finding]:
    device = facts["device"]
    if device is None or "error" in device:
        return
    if not device["cuda"]:
        yield Finding(
            "gpu", False, f"torch sees no CUDA device (built for CUDA {device['cuda_build'] or 'none'})",
            "run on a machine with an NVIDIA GPU and its driver",
        )  # fmt: skip
    else:
        capability = ".".join(map(str, device["capability"]))
        yield Finding("gpu", True, f"{device['count']} x {device['name']}, compute capability {capability}")
    usable = [name for name, works in device["attention"].items() if works]
    yield Finding(
        "attention backend",
        bool(usable),
        ", ".join(usable)
        or f"none of {', '.join(device['attention'])} works here (cuDNN {device['cudnn']}, 92200 wanted)",
        ""
        if usable
        else "pip install natten built for this torch and CUDA (upstream's group cu130-torch213), or flash-attn",
    )


def _proved(facts: Mapping[str, Any]) -> Iterator[Finding]:
    package = facts["framework"]["package"]
    if package is None:
        return
    try:
        proof = prove(Path(package), facts["framework"]["direct_url"])
        said = f"; its {proof.git.replace('_', ' ')} says the same" if proof.git else "; git says nothing of it"
        yield Finding("revision", True, f"{proof.revision}: {proof.files} files are those of the pin{said}")
    except StartRefused as refused:
        yield Finding("revision", False, refused.detail, refused.remedy)
