"""The generator image can import what a guarded start imports: the versions are pinned, and OpenCV needs no desktop.

What was run in a clean Debian is in docs/evidence/generator-image.md; here is what keeps it true.
"""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from support.dockerfile import ROOT, instructions, last_stage

from cosmos3_serve.generator.guardrails import packages

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PINS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
# Distributions of `cv2` whose shared objects want libxcb, libGL and libgthread, which a slim base lacks.
WITH_A_DESKTOP = {"opencv-python", "opencv-contrib-python"}


def image(engine: str) -> list[tuple[str, str]]:
    return [tuple(one) for one in instructions((ROOT / f"containers/generator-{engine}.Dockerfile").read_text())]  # type: ignore[misc]


def test_all_that_the_checks_import_is_pinned() -> None:
    wanted = set(packages._NEEDED["diffusers"].values())
    assert wanted - PINS.keys() == set()
    named = [Requirement(text) for text in PROJECT["project"]["optional-dependencies"]["guardrails"]]
    for requirement in named:
        if requirement.name != "cosmos3-serve":
            assert requirement.specifier.contains(PINS[requirement.name]), requirement


def test_opencv_is_the_build_without_a_desktop() -> None:
    assert packages._NEEDED["diffusers"]["cv2"] == packages._NEEDED["framework"]["cv2"] == "opencv-python-headless"
    assert not WITH_A_DESKTOP & PINS.keys()
    overridden = {r.name: r.marker for r in map(Requirement, PROJECT["tool"]["uv"]["override-dependencies"])}
    marker = overridden["opencv-python"]
    assert isinstance(marker, Marker) and not marker.evaluate({"sys_platform": "linux"})
    (install,) = [rest for word, rest in image("diffusers") if word == "RUN" and "[diffusers,guardrails]" in rest]
    assert re.search(r"uv pip install .*--constraint constraints\.txt", install), "pip knows no overrides"
    assert "opencv-python-headless" in install.split()


@pytest.mark.parametrize("engine", ["diffusers", "framework"])
def test_a_build_imports_all_of_it_as_the_services_user(engine: str) -> None:
    stage = last_stage(instructions((ROOT / f"containers/generator-{engine}.Dockerfile").read_text()))
    words = [one.word for one in stage]
    (check,) = [n for n, one in enumerate(stage) if one.word == "RUN" and "import_packages" in one.rest]
    assert words.index("USER") < check and f"i('{engine}')" in stage[check].rest
    assert callable(packages.import_packages)
