"""The interpreter that has the real framework, for tests that run nowhere else and say so loudly."""

import os

import pytest
from support.framework_service import REAL_ENV

PYTHON = os.environ.get(REAL_ENV, "")
needs_framework = pytest.mark.skipif(
    not PYTHON, reason=f"NOT RUN: the real framework is not here; {REAL_ENV} names a Python that has it"
)
