"""The training's own forward passes equal the stock modules that services run."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_batched_forward_passes_equal_the_stock_ones() -> None:
    command = [sys.executable, "recipes/blockworld/check.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "equal the stock ones" in done.stdout
