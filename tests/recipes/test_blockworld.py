"""The block world's training: its own forward passes equal the stock modules', and every stage runs and learns."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cosmos3_serve.generator.engines.diffusers.loader import load_components

ROOT = Path(__file__).parents[2]
STAGES = ("vae", "reasoner", "generator", "export", "evaluate")


def run(*argv: str, timeout_s: float = 280) -> str:
    command = [sys.executable, f"recipes/blockworld/{argv[0]}", *argv[1:]]
    # Two threads that wait for each other beside other tests take many times as long as one.
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_batched_forward_passes_equal_the_stock_ones() -> None:
    assert "equal the stock ones" in run("check.py", timeout_s=120)


@pytest.fixture(scope="module")
def dry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a dry run leaves."""
    out = tmp_path_factory.mktemp("dry")
    said = run("run.py", "--out", str(out), "--dry-run")
    assert all(f"{stage}: " in said for stage in STAGES), said[-2000:]
    return out


def logged(out: Path, stage: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / f"{stage}.jsonl").read_text().splitlines()]


def test_a_dry_run_learns_in_every_stage(dry: Path) -> None:
    quality = [line["psnr"] for line in logged(dry, "vae") if "psnr" in line]
    assert quality == sorted(quality) and quality[-1] > quality[0] + 0.03, quality
    answers = [line["loss"] for line in logged(dry, "reasoner") if "loss" in line]
    assert len(answers) == 12 and sum(answers[-3:]) < 0.97 * sum(answers[:3]), answers
    noise = [line["loss"] for line in logged(dry, "generator") if "loss" in line]
    assert len(noise) == 8 and all(math.isfinite(loss) for loss in noise), noise


def test_each_stage_trains_its_own_parameters_only(dry: Path) -> None:
    reasoner, generator = (torch.load(dry / f"{n}.pt", weights_only=True) for n in ("reasoner", "generator"))
    assert not reasoner["net"].keys() & generator["net"].keys()
    moved = [name for name, value in generator["net"].items() if name.startswith("proj_out") and value.any()]
    assert moved, "the projection that begins at zero is still there"


def test_what_a_dry_run_exports_loads_in_the_engine_and_is_evaluated(dry: Path) -> None:
    parts = load_components(dry / "checkpoint", torch.device("cpu"))
    assert parts.parameters > 5_000_000
    card = json.loads((dry / "checkpoint" / "WEIGHTS.json").read_text())
    assert (card["weights"], card["seed"]) == ("blockworld", 3)
    table = json.loads((dry / "evaluate.json").read_text())
    assert table.keys() >= {"text2image", "text2video_9", "agreement", "image2video", "reasoner"}
    assert table["image2video"]["psnr_mean"] > 5
