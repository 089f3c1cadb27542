"""Benchmarks are scripts, not a package of ours: their folder joins the path for these tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
