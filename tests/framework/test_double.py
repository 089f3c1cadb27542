"""The DOUBLE of the framework has the signatures of the REAL one at the pinned revision. No weights, no Ray cluster."""

import json
import os
import subprocess
import sys

import pytest
from support.framework_service import CPU, DOUBLE, SRC, SUPPORT
from support.real_framework import PYTHON, needs_framework

pytestmark = [pytest.mark.framework, pytest.mark.timeout(600), needs_framework]


def signatures(python: str, *path: object) -> dict[str, list[list[str]]]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "COSMOS_DEVICE": "cpu"}
    done = subprocess.run(
        [python, str(CPU / "signatures.py")], env=environ, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[list[str]]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def test_the_double_takes_what_upstream_takes() -> None:
    """Names, kinds and defaults of every parameter: a call by keyword that the double takes must not fail upstream."""
    real = signatures(PYTHON)
    double = signatures(sys.executable, DOUBLE, SRC, SUPPORT.parent)
    assert len(real) > 12 and double == real
