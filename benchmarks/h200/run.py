"""Measure the reasoner on one or two H200 GPUs: full size, RANDOM weights, our gateway and engine settings, levers.

    python run.py --out DIR --work DIR --gpus 1|2 --budget SECONDS [--dry]

Engines of all variants start at the same time and share the card, since starting takes minutes and measuring seconds;
only one is asked at any moment. Short cells rank the variants; the service's own settings and the best variant then
get the whole table. Everything measured so far is in DIR/results.json at any time. `--dry` puts a double in the place
of vLLM and proves nothing but this program.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from load import Answer
from measure.result import InvalidRun, demand
from served import TOKENS, Served
from variants import VARIANTS
from workload import SESSION, another

SEED = 20261130
PACKAGES = ("vllm", "torch", "transformers", "triton", "numpy", "opencv-python-headless", "av", "aiohttp")
TOGETHER = "all, 2 GPUs"


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.began = time.monotonic()
        self.args, self.dry, self.work = args, args.dry, args.work.resolve()
        self.work.mkdir(parents=True, exist_ok=True)
        self.model, self.plans = args.model.resolve(), self.work / "plans.json"
        self.python = args.python.split()
        self.clips = [path.read_bytes() for path in sorted(args.clips.glob("*.mp4"))]
        demand(bool(self.clips), f"{args.clips} holds no clips")
        self._videos = 0
        self.result: dict[str, Any] = {
            "conditions": self.conditions(),
            "variants": {},
            "cells": [],
            "steps": {},
            "failed": {},
        }
        self.raw: list[dict[str, Any]] = []

    def conditions(self) -> dict[str, Any]:
        sizes = [str(pick(map(len, self.clips))) for pick in (min, max)]
        return {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "weights": "random",
            "card": "double, no engine" if self.dry else card(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "versions": {name: found for name in PACKAGES if (found := _version(name))},
            "tokens": TOKENS,
            "clips": f"{len(self.clips)} of {' to '.join(sizes)} bytes, 640x360, 60 frames",
            "without": "Ray (the fleet's registry lives in the gateway's process) and AIPerf (the load is load.py)",
            "routing": "session-affinity for both mixes: how often a worker is new to a video is the mix's doing",
        }

    def fresh(self, count: int) -> int:
        """Numbers of videos that nobody has seen."""
        self._videos += count
        return self._videos - count

    def clip(self, number: int) -> bytes:
        return another(self.clips[number % len(self.clips)], number, SEED)

    def left(self) -> float:
        return float(self.args.budget) - (time.monotonic() - self.began)

    def keep(self, row: dict[str, Any], answers: Sequence[Answer], engine: dict[str, float]) -> None:
        self.result["cells"].append(row)
        self.raw.append(
            {**row, "answers": [a.as_dict() for a in answers], "engine": {k: v for k, v in engine.items() if v}}
        )
        self.save()
        if "invalid" in row:
            print(f"{row['variant']:18} {row['kind']:11} {row['in_flight']} INVALID: {row['invalid']}", flush=True)
            return
        print(
            f"{row['variant']:18} {row['kind']:11} {row['in_flight']} n {row['requests']:3d}"
            f" req/s/GPU {row['req_s_per_gpu']:.2f} TTFT {row['ttft_p50']:.0f}/{row['ttft_p95']:.0f}"
            f" latency {row['latency_p50']:.0f} ITL {row['itl_p50']:.2f}"
            f" cold TTFT {row.get('cold_ttft_p50', 0):.0f} prefill {row.get('prefill_mean', 0):.0f}"
            f" front {row.get('front_mean', 0):.0f} cached {answers[-1].cached}/{answers[-1].prompt}"
            f"  [{self.left():.0f} s left]",
            flush=True,
        )

    def save(self) -> None:
        self.result["seconds_so_far"] = round(time.monotonic() - self.began, 1)
        out: Path = self.args.out
        out.mkdir(parents=True, exist_ok=True)
        (out / "results.json").write_text(json.dumps(self.result, indent=1) + "\n")
        (out / "raw.json").write_text(json.dumps(self.raw) + "\n")

    async def guarded(self, what: Any, name: str) -> bool:
        try:
            await what
        except Exception as error:  # the other variants are still worth measuring
            self.result["failed"].setdefault(name, []).append(f"{type(error).__name__}: {str(error)[:500]}")
            print(f"{name} FAILED: {error}", flush=True)
            traceback.print_exc()
            return False
        return True

    async def run(self) -> None:
        wanted = self.args.variants.split(",")
        two = self.args.gpus == 2
        services = [Served(name, VARIANTS[name], [n % 2 if two else 0], self) for n, name in enumerate(wanted)]
        if two:
            services.append(Served(TOGETHER, VARIANTS[self.args.both], [0, 1], self))
        try:
            while sum(service.look() for service in services) < len(services):
                if self.left() < self.args.measure:
                    break
                await asyncio.sleep(0.5)
            for service in services:
                facts = {k: v for k, v in service.state.items() if k not in ("token", "header", "url", "engines")}
                self.result["variants"][service.name] = {
                    **service.variant.as_dict(),
                    **facts,
                    "gpus": len(service.gpus),
                }
                said = [facts.get(key, "") for key in ("ready_s", "canary", "failed")]
                print(service.name, "ready" if service.ready else "NOT READY", *said, facts.get("words", [])[-12:])
            self.save()
            for service in services:
                if not service.ready:  # else it would go on starting beside what is measured
                    await asyncio.to_thread(service.stop)
            await self.measure([s for s in services if s.ready])
        finally:
            for service in services:
                service.stop()
            self.save()

    async def measure(self, ready: list[Served]) -> None:
        alive = [s for s in ready if await self.guarded(s.warm_up(), s.name)]
        single = [s for s in alive if len(s.gpus) == 1]
        single = [s for s in single if await self.guarded(s.short(), s.name)]
        if not single:
            return
        own = next((s for s in single if s.name == "service"), None)
        best = max(single, key=self.rank)
        # Its own cells are checked whatever it ranks, but nothing then says that it is the best.
        self.result["best"] = best.name if self.rank(best) > 0 else "none: each variant has an invalid cell"
        print(f"best: {self.result['best']}", flush=True)
        if own and not self.dry:
            await self.guarded(own.traced(), own.name)
        await self.guarded(best.whole([2, 1], quick=self.dry), best.name)
        for other in single:
            if other is not best and other.name in self.args.whole.split(",") and self.left() > 55:
                await self.guarded(other.whole([2], quick=self.dry), other.name)
        if own and own is not best and own.name not in self.args.whole.split(",") and self.left() > 55:
            await self.guarded(own.whole([2], quick=self.dry), own.name)
        pair = next((s for s in alive if len(s.gpus) == 2), None)
        if pair and self.left() > 30:
            await self.guarded(pair.whole([4, 2] if self.left() > 75 else [4], quick=self.dry), pair.name)
        if not self.dry and best is not own and self.left() > 15:
            await self.guarded(best.traced(), best.name)
        if own and own is not best and self.left() > 60:
            await self.guarded(own.whole([1]), own.name)

    def rank(self, service: Served) -> float:
        """Requests a second with 2 in flight and 1 cold of 20, from the short cells; 0 if any cell is invalid."""
        mine = [c for c in self.raw if c["variant"] == service.name]
        rows = {(c["kind"], c["in_flight"]): c["answers"] for c in mine}
        if any("invalid" in c or any(answer["problem"] for answer in c["answers"]) for c in mine):
            return 0.0

        def latency(kind: str, at_once: int, cold: bool) -> float:
            return median(a["total_s"] for a in rows[kind, at_once] if (a["turn"] == 0) is cold)

        return 2 / (latency("warm", 2, False) + (latency("cold", 1, True) - latency("warm", 1, False)) / SESSION)


def card() -> str:
    """Name, driver and memory of each card. Raises InvalidRun: unknown, and figures must name it."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InvalidRun(f"the card is unknown: nvidia-smi: {type(error).__name__}") from None
    demand(said.returncode == 0 and bool(said.stdout.strip()), "the card is unknown: nvidia-smi names none")
    return said.stdout.strip()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--clips", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable, help="command of the engine's interpreter")
    parser.add_argument("--known", type=Path, help="folder of vLLM's model infos, to save each engine a look")
    parser.add_argument("--gpus", type=int, choices=(1, 2), default=1)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--whole", default="", help="variants that get both mixes even if they do not rank best")
    parser.add_argument("--both", default="all", help="the variant that runs on both GPUs")
    parser.add_argument("--budget", type=float, default=540, help="seconds for everything")
    parser.add_argument(
        "--measure", type=float, default=230, help="of them for measuring: engines not ready by then are left out"
    )
    parser.add_argument("--dry", action="store_true", help="a double in the place of vLLM")
    asyncio.run(Bench(parser.parse_args()).run())


if __name__ == "__main__":
    main()
