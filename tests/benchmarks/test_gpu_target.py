"""The record of a GPU target: none is written without a GPU."""

import runpy
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_target.py"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_there_is_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "record.json"
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--out", str(out)])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT), run_name="__main__")  # a process of its own would only import torch again
    assert ended.value.code == 3 and "no CUDA device" in capsys.readouterr().err
    assert not out.exists()
