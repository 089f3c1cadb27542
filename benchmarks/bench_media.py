"""What the reasoner's examination of a file costs, beside another version of this repository's, by turns in one run.

    git worktree add /somewhere e7ff4e8
    python benchmarks/bench_media.py --before /somewhere

Each turn is a process of its own that examines every file; figures are CPU milliseconds of the median turn. A file that
one version refuses makes the run invalid.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from measure.result import RESULTS, InvalidRun, Section, quiet, report

ABOUT = "CPU of one examination (what the gate's process does with a file that is let in as it is), warm."
REPEATS = 5
TURN = """
import json, sys, time
from pathlib import Path
from cosmos3_serve.reasoner.media.limits import MediaLimits
from cosmos3_serve.reasoner.media.replica import ReplicaDecoder
from cosmos3_serve.reasoner.media.worker import answer
found = {}
for path in sys.argv[1:]:
    job = {"path": path, "kind": "image" if path.endswith((".png", ".jpg")) else "video", "out": path + ".copy"}
    times = []
    for _ in range(4):
        began = time.process_time()
        said = answer(job, MediaLimits(), ReplicaDecoder())
        times.append(time.process_time() - began)
        if "info" not in said or said["served"]:
            sys.exit(f"{path}: {said}")
    found[Path(path).name] = min(times[1:]) * 1000
print(json.dumps(found))
"""


def main(argv: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--before", type=Path, help="a checkout of the version to compare with; default: this one")
    options.add_argument("--short", action="store_true", help="two turns each, small files")
    options.add_argument("--out", type=Path, default=RESULTS, help="where results are written")
    options.add_argument("--max-load", type=float, default=3.0, help="load average a core above which nothing is run")
    chosen = options.parse_args(argv)
    here = Path(__file__).parents[1]

    def measure(base: Path) -> list[Section]:
        quiet(chosen.max_load)
        files = make(base, short=chosen.short)
        trees = {"before": chosen.before or here, "now": here}
        turns: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
        for _ in range(2 if chosen.short else REPEATS):
            for name, tree in trees.items():
                turns[name].append(turn(tree, files))
        rows: list[list[str]] = [["file", "before, ms", "now, ms", "ratio"]]
        figures: dict[str, Any] = {}
        for path in files:
            before, now = (statistics.median(one[path.name] for one in turns[name]) for name in trees)
            figures[path.name] = {"before_ms": before, "now_ms": now, "ratio": now / before}
            rows.append([path.name, f"{before:.1f}", f"{now:.1f}", f"{now / before:.2f}"])
        ratio = statistics.median(figure["ratio"] for figure in figures.values())
        rows.append(["median of the ratios", "", "", f"{ratio:.2f}"])
        return [Section("CPU of one examination", ABOUT, rows, {**figures, "median_ratio": ratio})]

    with tempfile.TemporaryDirectory() as base:
        return report("media", lambda: measure(Path(base)), chosen.out, about=__doc__ or "")


def turn(tree: Path, files: list[Path]) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", TURN, *map(str, files)],
        env={"PYTHONPATH": str(tree / "src"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise InvalidRun(done.stderr.strip()[-300:])
    found: dict[str, float] = json.loads(done.stdout)
    return found


def make(folder: Path, *, short: bool) -> list[Path]:
    import av
    import numpy as np
    from PIL import Image

    chance = np.random.default_rng(0)

    def clip(name: str, codec: str, size: tuple[int, int], frames: int, **options: str) -> Path:
        texture = chance.integers(0, 255, (size[1] // 8 + 64, size[0] // 8 + 64, 3), np.uint8)
        large = np.asarray(Image.fromarray(texture).resize(((size[0] // 8 + 64) * 8, (size[1] // 8 + 64) * 8)))
        with av.open(str(folder / name), "w") as out:
            stream: Any = out.add_stream(codec, rate=25)
            stream.width, stream.height, stream.pix_fmt, stream.options = *size, "yuv420p", options
            for index in range(frames):
                shown = np.ascontiguousarray(
                    large[index : index + size[1], 2 * index % 400 : 2 * index % 400 + size[0]]
                )
                out.mux(stream.encode(av.VideoFrame.from_ndarray(shown, format="rgb24")))
            out.mux(stream.encode(None))
        return folder / name

    picture = Image.fromarray(chance.integers(0, 255, (1080, 1920, 3), np.uint8))
    picture.save(folder / "1920x1080.png")
    picture.save(folder / "1920x1080.jpg", quality=90)
    count = 50 if short else 200
    return [
        clip("640x360.mp4", "libx264", (640, 360), count, preset="veryfast"),
        clip("640x360_bframes.mkv", "libx264", (640, 360), count, preset="medium"),
        clip("1280x720.mp4", "libx264", (1280, 720), count, preset="veryfast"),
        clip("640x360.webm", "libvpx-vp9", (640, 360), count // 2, **{"cpu-used": "8", "deadline": "realtime"}),
        clip("1280x720_hevc.mp4", "libx265", (1280, 720), count // 2, preset="ultrafast",
             **{"x265-params": "log-level=none"}),
        clip("1920x1080_ends_only.mp4", "libx264", (1920, 1080), count, preset="ultrafast"),
        folder / "1920x1080.png",
        folder / "1920x1080.jpg",
    ]  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
