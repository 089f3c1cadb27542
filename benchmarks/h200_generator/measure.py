"""Measure the diffusers engine on one CUDA device with a full-size transformer and autoencoder of RANDOM weights.

    PYTHONPATH=src:benchmarks/h200_generator python benchmarks/h200_generator/measure.py --out results

Weights do not change how long a product takes, so times stand for the real checkpoint's; pictures, MP4 sizes and
therefore encoding times do not. `--tiny` is a dry run with small components, for a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import variants
from full_size import counts, make_engine, make_jobs, random_components
from parts import anatomy, decode_flop, prefill_times, profiled, rounding
from roofline import ceilings, step_floor

from cosmos3_serve.errors import SampleError
from cosmos3_serve.generator.engines.diffusers.loader import diffusers_version, pick_device
from cosmos3_serve.weights.tiny import ensure_tiny

IMAGE = {"model_mode": "text2image", "aspect_ratio": "1,1"}
VIDEO = {"model_mode": "text2video", "aspect_ratio": "16,9"}
CASES: dict[str, tuple[dict[str, Any], tuple[int, ...], int]] = {
    "t2i-256": ({**IMAGE, "resolution": "256"}, (1, 2, 4, 8), 3),
    "t2i-480": ({**IMAGE, "resolution": "480"}, (1, 2, 4, 8), 3),
    "t2i-720": ({**IMAGE, "resolution": "720"}, (1, 2, 4, 8), 3),
    "t2v-256-25f": ({**VIDEO, "resolution": "256", "num_frames": 25}, (1, 2), 3),
    "t2v-480-49f": ({**VIDEO, "resolution": "480", "num_frames": 49}, (1, 2), 2),
}
DIRECT = {  # full number of steps, or a size that is too dear for ten
    "t2i-720-50-steps": ({**IMAGE, "resolution": "720", "num_steps": 50}, 1),
    "t2v-720-189f-4-steps": ({**VIDEO, "resolution": "720", "num_frames": 189, "num_steps": 4}, 1),
}
DRY = {"t2i-256": ({**IMAGE, "resolution": "256"}, (1, 2), 1)}
COMPARED = (("t2i-256", 1), ("t2i-256", 8), ("t2i-720", 1), ("t2i-720", 4), ("t2v-480-49f", 1))


class Bench:
    def __init__(self, args: argparse.Namespace, root: Path) -> None:
        self.began = time.perf_counter()
        self.args = args
        self.root = root
        self.device = pick_device("auto")
        tiny_path = ensure_tiny(args.cache)
        self.parts = random_components(tiny_path, self.device, tiny=args.tiny)
        self.engine = make_engine(self.parts, root, tiny_path, 8)
        self.network: Any = self.engine._network
        self.codec: Any = self.engine._tools.codec
        self.sizes = counts(self.parts)
        self.rates = ceilings(self.device)
        self.result: dict[str, Any] = {"conditions": self.conditions(), "cases": {}}
        self.serial = 0

    def conditions(self) -> dict[str, Any]:
        cuda = self.device.type == "cuda"
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        return {
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "weights": "random",
            "tokenizer": "tiny checkpoint",
            "card": subprocess.run(query, capture_output=True, text=True).stdout.strip() if cuda else "cpu",
            "torch": torch.__version__,
            "cudnn": torch.backends.cudnn.version() if cuda else None,
            "diffusers": diffusers_version(),
            "dtype": str(self.parts.dtype),
            "billion_parameters": self.sizes,
            "measured_ceilings": self.rates,
            "weights_bytes": torch.cuda.memory_allocated() if cuda else None,
        }

    def save(self) -> None:
        self.result["seconds_so_far"] = time.perf_counter() - self.began
        (self.args.out / "results.json").write_text(json.dumps(self.result, indent=1) + "\n")

    # ---- one wave ---------------------------------------------------------------------------------------------------

    def jobs(self, fields: dict[str, Any], batch: int) -> list[Any]:
        self.serial += 1
        return make_jobs(self.root, batch, f"r{self.serial}", fields)

    def sync(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def wave(self, fields: dict[str, Any], batch: int, *, finish: bool = True) -> dict[str, Any]:
        jobs = self.jobs(fields, batch)
        stamps: list[float] = []

        def on_step(key: str, done: int, total: int) -> None:
            if key == jobs[0].key:
                stamps.append(time.perf_counter())

        self.reset_peak()
        begin = time.perf_counter()
        items = self.engine.denoise(jobs, on_step, lambda key: False)
        self.sync()
        denoised = time.perf_counter()
        for item in items:
            if isinstance(item, SampleError):
                raise item
        assert items[0].wave.inference_batch == batch
        taken = {"denoise_s": denoised - begin, "denoise_peak_gb": self.peak()}
        taken["prepare_s"] = sum(item.phases["prepare"] for item in items)
        taken["step_s"] = statistics.median(b - a for a, b in pairwise(stamps[2:]))
        latents = [item.latents.latents for item in items]
        if finish:
            self.reset_peak()
            results = [self.engine.finish(item) for item in items]
            taken["finish_s"] = time.perf_counter() - denoised
            taken["finish_peak_gb"] = self.peak()
            for result in results:
                assert result.error is None, result.error
            for phase in ("decode", "encode"):
                taken[f"{phase}_s_per_sample"] = statistics.mean(result.phases[phase] for result in results)
        return {"taken": taken, "latents": latents}

    def reset_peak(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak(self) -> float:
        return torch.cuda.max_memory_allocated() / 1e9 if self.device.type == "cuda" else 0.0

    def strands(self, fields: dict[str, Any], batch: int) -> list[tuple[int, int]]:
        """(own rows, text rows) of each strand of a wave; running it also warms up."""
        seen: list[tuple[int, int]] = []
        real = self.network.forward

        def forward(block: Any) -> Any:
            seen[:] = [(strand.rows.shape[0], strand.prefix.length) for strand in block]
            return real(block)

        with patch.object(self.network, "forward", forward):
            self.wave({**fields, "num_steps": 4}, batch)
        return seen

    # ---- what is measured -------------------------------------------------------------------------------------------

    def case(self, name: str, fields: dict[str, Any], batch: int, repeats: int, *, warm: bool = True) -> None:
        fields = {"num_steps": self.args.steps, **fields}
        strands = self.strands(fields, batch) if warm else []
        runs = [self.wave(fields, batch)["taken"] for _ in range(repeats)]
        row: dict[str, Any] = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        row["batch"], row["steps"], row["repeats"] = batch, fields["num_steps"], repeats
        spread = [run["denoise_s"] for run in runs]
        row["denoise_spread"] = (max(spread) - min(spread)) / row["denoise_s"]
        row["denoise_samples_per_s"] = batch / row["denoise_s"]
        row["serial_samples_per_s"] = batch / (row["denoise_s"] + row["finish_s"])
        if strands:
            row["strands"] = strands
            row["floor"] = step_floor(strands, self.parts.transformer.config, self.sizes["read_per_step"], self.rates)
        self.result["cases"][f"{name} x{batch}"] = row
        self.save()
        floor = row.get("floor", {})
        print(
            f"{name:22} x{batch} denoise {row['denoise_s']:.3f}s step {row['step_s'] * 1e3:.1f}ms"
            f" floor {max(floor.get('compute_s', 0), floor.get('weights_s', 0)) * 1e3:.1f}ms prepare"
            f" {row['prepare_s']:.3f} decode {row['decode_s_per_sample']:.3f} encode {row['encode_s_per_sample']:.3f}"
            f" peak {row['denoise_peak_gb']:.1f}/{row['finish_peak_gb']:.1f}GB spread {row['denoise_spread']:.3f}",
            flush=True,
        )

    def compare(self, name: str, batch: int) -> None:
        """Each variant's step time and distance of its latents from the engine as it is, on equal seeds."""
        fields = {"num_steps": self.args.steps, **CASES[name][0]}
        table: dict[str, Any] = {}
        base = self.wave(fields, batch, finish=False)
        for variant in ("base", *variants.NAMES, "base"):
            label = variant if variant not in table else "base-again"
            try:
                with variants.applied(variant, self.engine):
                    self.wave({**fields, "num_steps": 4}, batch, finish=False)
                    run = self.wave(fields, batch, finish=False)
            except Exception as error:
                table[label] = {"failed": f"{type(error).__name__}: {str(error)[:200]}"}
                self.sync()
                print(f"{name} x{batch} {label}: {table[label]}", flush=True)
                continue
            pairs = zip(run["latents"], base["latents"], strict=True)
            distance = max(float((a - b).norm() / b.norm()) for a, b in pairs)
            taken = run["taken"]
            table[label] = {
                "step_s": taken["step_s"], "denoise_s": taken["denoise_s"], "relative_difference": distance,
                "peak_gb": taken["denoise_peak_gb"],
            }  # fmt: skip
            print(
                f"{name} x{batch} {label:18} step {taken['step_s'] * 1e3:.2f}ms denoise {taken['denoise_s']:.3f}s"
                f" peak {taken['denoise_peak_gb']:.1f} diff {distance:.1e}",
                flush=True,
            )
        self.result.setdefault("variants", {})[f"{name} x{batch}"] = table
        self.save()

    def left(self) -> float:
        return self.args.budget - (time.perf_counter() - self.began)

    def run(self) -> None:
        print(json.dumps(self.result["conditions"], indent=1), flush=True)
        wanted = self.args.only.split(",")
        cases = DRY if self.args.tiny else CASES
        compared = [pair for pair in COMPARED if pair[0] in cases]
        if "cases" in wanted:
            for name, (fields, batches, repeats) in cases.items():
                for batch in batches:
                    self.case(name, fields, batch, repeats)
        if "parts" in wanted:
            self.result["prefill"] = prefill_times(self.network, self.sync)
            for name, batch in compared:
                fields = {"num_steps": self.args.steps, **CASES[name][0]}
                key = f"{name} x{batch}"
                self.result.setdefault("anatomy", {})[key] = anatomy(self, fields, batch)
                self.result.setdefault("decode_tflop", {})[key] = decode_flop(self, fields)
                self.result.setdefault("profile", {})[key] = profiled(self, fields, batch)
                print(key, self.result["anatomy"][key], f"decode {self.result['decode_tflop'][key]:.2f} TFLOP")
                self.save()
        if "direct" in wanted:
            for name, (fields, batch) in DIRECT.items():
                if self.left() > 100 and not self.args.tiny:
                    self.case(name, fields, batch, 1, warm=False)
        if "variants" in wanted:
            for name, batch in compared:
                if self.left() > 60:
                    self.compare(name, batch)
        if "rounding" in wanted:
            self.result["rounding"] = rounding(self, CASES["t2i-256"][0])
            print("rounding", self.result["rounding"], flush=True)
        self.save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "cosmos3-bench-cache")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--budget", type=float, default=420, help="seconds; optional parts are left out beyond")
    parser.add_argument("--only", default="cases,parts,rounding,direct,variants")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with tempfile.TemporaryDirectory() as root:
        Bench(args, Path(root).resolve()).run()


if __name__ == "__main__":
    main()
