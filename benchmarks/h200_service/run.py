"""Throughput through the service over the engine called directly, where the engine is on a GPU and of Nano's size.

    PYTHONPATH=$PWD/src:$PWD/benchmarks:$PWD/benchmarks/h200_service python benchmarks/h200_service/run.py

RANDOM weights: times stand for the real checkpoint's, pictures do not. An invalid run prints no figure and ends 3.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from measure.direct import DirectEngine
from measure.result import RESULTS, Section, report
from measure.start import idle_section, start_section, started
from measure.throughput import throughput
from served import FullSizeGenerator

HERE = Path(__file__).parent
LIMIT = 4
IMAGE = {"num_frames": 1, "num_steps": 50}
SHAPES = {
    "256x256 image, 50 steps": (16, IMAGE),
    "640x640 image, 50 steps": (8, IMAGE | {"resolution": "480"}),
    "960x960 image, 50 steps": (8, IMAGE | {"resolution": "720"}),  # what the model makes where nothing is named
    "256x256 image, 4 steps": (32, IMAGE | {"num_steps": 4}),
}
DRY = {"256x256 image, 4 steps": (8, IMAGE | {"num_steps": 4})}
ABOUT = (
    "The product's service on real Ray and Serve, and the engine in a process of its own, on the same card in turn: a"
    " transformer and an autoencoder of Cosmos3-Nano's size with random weights, guardrails off, images only."
)


def measure(base: Path, device: str, repeats: int) -> list[Section]:
    environ = {
        "COSMOS3_DEVICE": device,
        "NPA_COSMOS3_RAY_MAX_BATCH_SIZE": str(LIMIT),
        "NPA_COSMOS3_RAY_BATCH_WAIT_TIMEOUT_S": "0.05",
        "NPA_COSMOS3_RAY_OUTPUT_DIR": str(base / "outputs"),
        "COSMOS3_FORCE_UNSUPPORTED_GPU": "true",
    }
    cache = base / "cache"
    program = (str(HERE / "served.py"), "direct")
    with (
        FullSizeGenerator(environ, cache, start_timeout_s=400.0) as service,
        DirectEngine(base / "direct", cache, LIMIT, device=device, program=program) as direct,
    ):
        start = started(service)
        ratio = throughput(service, direct, LIMIT, DRY if device == "cpu" else SHAPES, repeats)
        return [ratio, start_section([start]), idle_section(service, 5.0)]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", default="cuda")
    options.add_argument("--repeats", type=int, default=4)
    options.add_argument("--out", type=Path, default=RESULTS)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as base:
        return report(
            "h200-service",
            lambda: measure(Path(base), chosen.device, chosen.repeats),
            chosen.out,
            about=ABOUT,
        )


if __name__ == "__main__":
    sys.exit(main())
