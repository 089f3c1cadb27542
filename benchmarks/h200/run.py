"""Measure the reasoner on one or two H200 GPUs: full size, RANDOM weights, our gateway, our engine settings, and levers.

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

import aiohttp
from cells import check, counts, grown, summary
from load import Answer, Client, in_sessions, in_turn
from measure.result import InvalidRun, demand
from trace import decode_step, load_events
from variants import VARIANTS, Variant
from workload import AFFINITY, ROUND_ROBIN, SESSION, Job, affinity, another, body, question, round_robin, text_body

HERE = Path(__file__).parent
TOKENS, TRACED = 128, 64
SEED = 20261130
PACKAGES = ("vllm", "torch", "transformers", "triton", "numpy", "opencv-python-headless", "av", "aiohttp")
TOGETHER = "all, 2 GPUs"


class Service:
    """One variant's gateway and engines, in a process of their own."""

    def __init__(self, name: str, variant: Variant, gpus: Sequence[int], bench: Bench) -> None:
        self.name, self.variant, self.gpus, self.bench = name, variant, list(gpus), bench
        self.folder = bench.work / name.replace(" ", "_").replace(",", "").replace("+", "-")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.state: dict[str, Any] = {}
        self._state = self.folder / "state.json"
        extra, env = list(variant.extra), dict(variant.env)
        if not bench.dry:
            profiler = {
                "profiler": "torch", "torch_profiler_dir": str(self.folder / "trace"), "ignore_frontend": True,
                "torch_profiler_with_stack": False, "torch_profiler_dump_cuda_time_total": False,
            }  # fmt: skip
            extra += [
                "--load-format", "dummy", "--seed", "0", "--gpu-memory-utilization", "0.1",
                "--kv-cache-memory-bytes", "8G", "--profiler-config", json.dumps(profiler),
            ]  # fmt: skip
            env |= {"COSMOS3_FEW_ROWS": str(bench.plans)}
        plugin = {"VLLM_PLUGINS": "cosmos3_few_rows" if variant.plugin else ""}
        job = {
            "model": str(bench.model), "python": bench.python, "gpus": self.gpus if not bench.dry else [],
            "extra": extra, "env": env | plugin, "cache": str(self.cache()), "root": str(self.folder),
            "routing": "session-affinity", "double": bench.dry,
        }  # fmt: skip
        (self.folder / "job.json").write_text(json.dumps(job))
        command = [sys.executable, str(HERE / "service.py"), str(self.folder / "job.json"), str(self._state)]
        with (self.folder / "service.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)

    def cache(self) -> Path:
        """Compiled kernels of this variant alone: some of what differs is not part of vLLM's key."""
        known = self.folder / "cache" / "vllm" / "root" / "modelinfos"
        known.mkdir(parents=True, exist_ok=True)
        for path in self.bench.args.known.glob("*.json") if self.bench.args.known else ():
            (known / path.name).write_bytes(path.read_bytes())
        return self.folder / "cache"

    def look(self) -> bool:
        """Whether it is ready, or never will be."""
        if not self.state and self._state.is_file():
            self.state = json.loads(self._state.read_text())
        if not self.state and self._process.poll() is not None:
            self.state = {"failed": (self.folder / "service.log").read_text()[-1500:]}
        return bool(self.state)

    @property
    def ready(self) -> bool:
        return "url" in self.state

    def stop(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(25)
        except subprocess.TimeoutExpired:
            self._process.kill()

    # ---- asking -----------------------------------------------------------------------------------------------------

    def client(self) -> Client:
        return Client(self.state["url"], {"Authorization": f"Bearer {self.state['token']}"})

    async def engine(self, method: str, path: str) -> str:
        """The answers of all engines, one after the other."""
        said = []
        async with aiohttp.ClientSession(headers=dict([self.state["header"]]), trust_env=False) as http:
            for url in self.state["engines"]:
                async with http.request(method, url + path, timeout=aiohttp.ClientTimeout(90)) as answer:
                    demand(answer.status == 200, f"an engine answers {answer.status} to {path}")
                    said.append(await answer.text())
        return "\n".join(said)

    async def cell(self, kind: str, at_once: int, groups: Sequence[Sequence[Job]], *, turns: bool = False) -> None:
        """Measure one cell and keep its figures, or why it is invalid."""
        bench, jobs = self.bench, [job for group in groups for job in group]
        first = bench.fresh(len({job.session for job in jobs}))

        def make(job: Job) -> bytes:
            return body(self.state["model"], bench.clip(first + job.session), question(first + job.session, job.turn), TOKENS)

        bodies = {job: make(job) for job in jobs}
        await self._measure(kind, at_once, jobs, bodies, turns=turns, groups=groups)

    async def _measure(
        self, kind: str, at_once: int, jobs: Sequence[Job], bodies: dict[Job, bytes], *, turns: bool,
        groups: Sequence[Sequence[Job]], primed: bool = False,
    ) -> None:  # fmt: skip
        before = counts(await self.engine("GET", "/metrics"))
        async with self.client() as client:
            began = time.perf_counter()
            if turns:
                answers = await in_turn(client, jobs, bodies.__getitem__, at_once)
            else:
                answers = await in_sessions(client, groups, bodies.__getitem__, at_once)
            wall = time.perf_counter() - began
        engine = await self._grown(before, len(jobs))
        cold = 0 if primed else sum(job.cold for job in jobs)
        row: dict[str, Any] = {"variant": self.name, "kind": kind, "in_flight": at_once, "gpus": len(self.gpus), "cold": cold}
        try:
            if kind != "text":
                check(f"{self.name}, {kind}, {at_once}", answers, engine, cold=cold, tokens=TOKENS)
            else:
                demand(all(not a.problem and a.tokens == TOKENS for a in answers), f"text: {[a.problem for a in answers][:2]}")
            row |= summary(answers, wall, engine, gpus=len(self.gpus))
        except InvalidRun as reason:
            row["invalid"] = str(reason)
        self.bench.keep(row, answers, engine)

    async def _grown(self, before: dict[str, float], count: int) -> dict[str, float]:
        """The engines' counters since `before`; the last question's are told a moment after its answer."""
        for _ in range(20):
            engine = grown(before, counts(await self.engine("GET", "/metrics")))
            if engine.get("vllm:request_success_total", 0) >= count:
                break
            await asyncio.sleep(0.05)
        return engine

    async def warm_up(self) -> None:
        """Kernels that are compiled when first used are, on every engine, and the gateway has its processes."""
        jobs = [[Job(n, 0), Job(n, 1)] for n in range(2 * len(self.gpus))]
        first = self.bench.fresh(len(jobs))
        async with self.client() as client:
            answers = await in_sessions(
                client, jobs,
                lambda j: body(self.state["model"], self.bench.clip(first + j.session), question(j.session, j.turn), 16),
                2 * len(self.gpus),
            )  # fmt: skip
        for answer in answers:
            demand(not answer.problem, f"{self.name}, warming up: {answer.problem}")

    async def short(self) -> None:
        """Cells that rank variants: text alone, and one session per client, whose first question is cold."""
        words = {Job(-1, n): text_body(self.state["model"], question(0, n), TOKENS) for n in range(1, 4)}
        await self._measure("text", 1, list(words), words, turns=False, groups=[list(words)])
        await self.cell("warm", 1, [[Job(0, turn) for turn in range(7)]])
        await self.cell("warm", 2, [[Job(n, turn) for turn in range(9)] for n in range(2)])
        await self.cell("cold", 1, [[Job(n, 0)] for n in range(5)])

    async def whole(self, levels: Sequence[int], *, quick: bool = False) -> None:
        """Both mixes; `levels` are requests in flight, all GPUs together, the most telling first."""
        for at_once in levels:
            sessions = max(2, at_once) * (1 if quick or at_once == 1 else 2)
            await self.cell(AFFINITY, at_once, affinity(sessions))
            videos = 8 if quick else max(16, 8 * at_once)
            await self.cell(ROUND_ROBIN, at_once, [round_robin(videos)], turns=True)

    async def traced(self) -> None:
        """Where a decode step goes: one warm question under the profiler, beside no other."""
        first = self.bench.fresh(1)
        texts = [body(self.state["model"], self.bench.clip(first), question(first, n), TRACED) for n in range(3)]
        async with self.client() as client:
            await client.ask(texts[0])
            await self.engine("POST", "/start_profile")
            await client.ask(texts[1])
            await self.engine("POST", "/stop_profile")
        traces = sorted((self.folder / "trace").glob("*.json*"), key=lambda p: p.stat().st_size)
        demand(bool(traces), "the profiler left no trace")
        found = decode_step(await asyncio.to_thread(load_events, traces[-1]), TRACED - 1)
        self.bench.result["steps"][self.name] = found
        print(f"{self.name}: a decode step, us: {json.dumps({k: v for k, v in found.items() if k != 'kernels'})}", flush=True)
        for kernel in found["kernels"]:
            print("   ", kernel, flush=True)
        self.bench.save()


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
        self.result: dict[str, Any] = {"conditions": self.conditions(), "variants": {}, "cells": [], "steps": {}, "failed": {}}
        self.raw: list[dict[str, Any]] = []

    def conditions(self) -> dict[str, Any]:
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        return {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "weights": "random",
            "card": "double, no engine" if self.dry else subprocess.run(query, capture_output=True, text=True).stdout.strip(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "versions": {name: found for name in PACKAGES if (found := _version(name))},
            "tokens": TOKENS,
            "clips": f"{len(self.clips)} of {min(map(len, self.clips))} to {max(map(len, self.clips))} bytes, 640x360, 60 frames",
            "without": "Ray (the fleet's registry lives in the gateway's process)",
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
        self.raw.append({**row, "answers": [a.as_dict() for a in answers], "engine": {k: v for k, v in engine.items() if v}})
        self.save()
        if "invalid" in row:
            print(f"{row['variant']:18} {row['kind']:11} {row['in_flight']} INVALID: {row['invalid']}", flush=True)
            return
        print(
            f"{row['variant']:18} {row['kind']:11} {row['in_flight']} n {row['requests']:3d} req/s/GPU {row['req_s_per_gpu']:.2f}"
            f" TTFT {row['ttft_p50']:.0f}/{row['ttft_p95']:.0f} latency {row['latency_p50']:.0f} ITL {row['itl_p50']:.2f}"
            f" cold TTFT {row.get('cold_ttft_p50', 0):.0f} prefill {row.get('prefill_mean', 0):.0f} front"
            f" {row.get('front_mean', 0):.0f} cached {answers[-1].cached}/{answers[-1].prompt}  [{self.left():.0f} s left]",
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
        services = [Service(name, VARIANTS[name], [n % 2 if two else 0], self) for n, name in enumerate(wanted)]
        if two:
            services.append(Service(TOGETHER, VARIANTS[self.args.both], [0, 1], self))
        try:
            while not all([service.look() for service in services]):  # each looks
                if self.left() < self.args.measure:
                    break
                await asyncio.sleep(0.5)
            for service in services:
                facts = {k: v for k, v in service.state.items() if k not in ("token", "header", "url", "engines")}
                self.result["variants"][service.name] = {**service.variant.as_dict(), **facts, "gpus": len(service.gpus)}
                print(f"{service.name}: {'ready' if service.ready else 'NOT READY'} {facts.get('ready_s', '')} "
                      f"{facts.get('canary', '')} {facts.get('failed', '')} {facts.get('words', [])[-12:]}", flush=True)  # fmt: skip
            self.save()
            await self.measure([s for s in services if s.ready])
        finally:
            for service in services:
                service.stop()
            self.save()

    async def measure(self, ready: list[Service]) -> None:
        alive = [s for s in ready if await self.guarded(s.warm_up(), s.name)]
        single = [s for s in alive if len(s.gpus) == 1]
        single = [s for s in single if await self.guarded(s.short(), s.name)]
        if not single:
            return
        own = next((s for s in single if s.name == "service"), None)
        best = max(single, key=self.rank)
        self.result["best"] = best.name
        print(f"best: {best.name}", flush=True)
        if own and not self.dry:
            await self.guarded(own.traced(), own.name)
        await self.guarded(best.whole([2, 1], quick=self.dry), best.name)
        if own and own is not best and self.left() > 55:
            await self.guarded(own.whole([2], quick=self.dry), own.name)
        pair = next((s for s in alive if len(s.gpus) == 2), None)
        if pair and self.left() > 30:
            await self.guarded(pair.whole([4, 2] if self.left() > 75 else [4], quick=self.dry), pair.name)
        if not self.dry and best is not own and self.left() > 15:
            await self.guarded(best.traced(), best.name)
        if own and own is not best and self.left() > 60:
            await self.guarded(own.whole([1]), own.name)

    def rank(self, service: Service) -> float:
        """Requests a second with 2 in flight and 1 cold of 20, from the short cells; 0 if an answer failed."""
        rows = {(c["kind"], c["in_flight"]): c["answers"] for c in self.raw if c["variant"] == service.name}
        if any(answer["problem"] for answers in rows.values() for answer in answers):
            return 0.0

        def latency(kind: str, at_once: int, cold: bool) -> float:
            return median(a["total_s"] for a in rows[kind, at_once] if (a["turn"] == 0) is cold)

        return 2 / (latency("warm", 2, False) + (latency("cold", 1, True) - latency("warm", 1, False)) / SESSION)


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
    parser.add_argument("--both", default="all", help="the variant that runs on both GPUs")
    parser.add_argument("--budget", type=float, default=540, help="seconds for everything")
    parser.add_argument("--measure", type=float, default=230, help="of them for measuring: engines not ready by then are left out")
    parser.add_argument("--dry", action="store_true", help="a double in the place of vLLM")
    asyncio.run(Bench(parser.parse_args()).run())


if __name__ == "__main__":
    main()
