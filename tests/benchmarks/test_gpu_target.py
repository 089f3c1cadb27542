"""The record of a GPU target: none is written without a GPU."""

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_target.py"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_there_is_no_record(tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    done = subprocess.run([sys.executable, str(SCRIPT), "--out", str(out)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 3 and "no CUDA device" in done.stderr
    assert not out.exists()
