"""The generator service on this machine: throughput, coalescing, /health under load, start-up, idle memory.

One run, the tiny checkpoint with random weights. `--short` makes it a matter of minutes; the figures then come from
fewer repeats. An invalid run (a failed sample, other bytes, other waves, a wrong count) prints no figure and ends 3.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from measure.coalescing import coalescing
from measure.direct import DirectEngine
from measure.health import health
from measure.machine import cores
from measure.result import RESULTS, Section, report
from measure.start import another_start, idle_section, start_section, started
from measure.throughput import throughput

from cosmos3_serve.generator.local import LocalGenerator

LIMIT = 4
WINDOW_S = 0.05
# What a batch waits for once, at its begin and at its end, weighs most where a batch has two waves; what each sample
# costs, where it has few steps. The tiny checkpoint takes four where none are named, the real model 50 and 35.
IMAGE = {"num_frames": 1, "num_steps": 4}
CLIP = {"num_frames": 5, "num_steps": 10}
SHAPES = {
    "image, 4 steps": (8, IMAGE),
    "image, 4 steps, eight waves": (32, IMAGE),
    "image, 50 steps": (16, IMAGE | {"num_steps": 50}),
    "5-frame video, 10 steps": (8, CLIP),
    "5-frame video, 10 steps, four waves": (16, CLIP),
    "5-frame video, 35 steps": (8, CLIP | {"num_steps": 35}),
}
APART = {
    name: SHAPES[name]
    for name in ("image, 4 steps, eight waves", "image, 50 steps", "5-frame video, 10 steps, four waves")
}
ENVIRON = {"NPA_COSMOS3_RAY_MAX_BATCH_SIZE": str(LIMIT), "NPA_COSMOS3_RAY_BATCH_WAIT_TIMEOUT_S": str(WINDOW_S)}
ABOUT = "The tiny checkpoint: random weights, so the pictures mean nothing; the work around them is real."


def measure(base: Path, *, short: bool, artifact_bytes: int) -> list[Section]:
    cache = base / "cache"
    another_start(ENVIRON, cache)  # builds the checkpoint, and byte code where there is none yet
    with LocalGenerator(ENVIRON, cache) as service:
        starts = [started(service)]
        idle = idle_section(service, 3.0 if short else 10.0)
        with DirectEngine(base / "direct", cache, LIMIT) as direct:
            ratios = [throughput(service, direct, LIMIT, SHAPES, repeats=2 if short else 6)]
            if cores() > 1:
                ratios.append(throughput(service, direct, LIMIT, APART, repeats=2 if short else 6, set_apart=True))
        joined = coalescing(service, LIMIT, WINDOW_S, arrivals=16 if short else 40, rate=4.0)
        long = {"num_frames": 25, "num_steps": 400}
        alive = health(service, cores(), 5.0 if short else 12.0, artifact_bytes, long)
    starts += [another_start(ENVIRON, cache) for _ in range(0 if short else 1)]
    return [*ratios, joined, alive, start_section(starts), idle]


def main(argv: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--short", action="store_true", help="fewer repeats")
    options.add_argument("--out", type=Path, default=RESULTS, help="where results are written")
    options.add_argument("--artifact-mb", type=int, default=500)
    chosen = options.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="bench-") as base:
        return report(
            "generator-short" if chosen.short else "generator",
            lambda: measure(Path(base), short=chosen.short, artifact_bytes=chosen.artifact_mb * 1_000_000),
            chosen.out,
            about=ABOUT,
        )


if __name__ == "__main__":
    sys.exit(main())
