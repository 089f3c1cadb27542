"""Served: one variant's gateway and engines in a process of their own, and the cells that are measured on it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from cells import check, counts, grown, summary
from gpu_trace import decode_step, load_events
from load import Client, in_sessions, in_turn
from measure.result import InvalidRun, demand
from variants import Variant
from workload import AFFINITY, ROUND_ROBIN, Job, affinity, body, question, round_robin, text_body

if TYPE_CHECKING:
    from run import Bench

HERE = Path(__file__).parent
TOKENS, TRACED = 128, 64


class Served:
    """Starts at once; `look` says when it is ready."""

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
        # The supervisor keeps the engine's log in its temporary directory.
        environ = {**os.environ, "TMPDIR": str(self.folder)}
        with (self.folder / "service.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environ)

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
        """End it whole. One that never got ready leaves its engine's last words."""
        if not self.ready:
            words = [path.read_bytes()[-20_000:] for path in self.folder.glob("c3v-*/engine.log")]
            (self.folder / "engine.log").write_bytes(b"\n".join(words))
            self._process.terminate()
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(25)
        except subprocess.TimeoutExpired:
            self._process.kill()

    # ---- asking -----------------------------------------------------------------------------------------------------

    def client(self, *, straight: bool = False) -> Client:
        """Of the gateway; `straight`: of the first engine, which shows what the gateway adds."""
        if straight:
            return Client(self.state["engines"][0], dict([self.state["header"]]))
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

    def body(self, first: int, job: Job, tokens: int) -> bytes:
        """A question about the cell's videos, which are those from `first` on."""
        number = first + job.session
        return body(self.state["model"], self.bench.clip(number), question(number, job.turn), tokens)

    async def cell(
        self, kind: str, at_once: int, groups: Sequence[Sequence[Job]], *, turns: bool = False, straight: bool = False
    ) -> None:
        """Measure one cell and keep its figures, or why it is invalid."""
        bench, jobs = self.bench, [job for group in groups for job in group]
        first = bench.fresh(len({job.session for job in jobs}))

        bodies = {job: self.body(first, job, TOKENS) for job in jobs}
        await self._measure(kind, at_once, jobs, bodies, turns=turns, groups=groups, straight=straight)

    async def _measure(
        self, kind: str, at_once: int, jobs: Sequence[Job], bodies: dict[Job, bytes], *, turns: bool,
        groups: Sequence[Sequence[Job]], straight: bool = False,
    ) -> None:  # fmt: skip
        before = counts(await self.engine("GET", "/metrics"))
        async with self.client(straight=straight) as client:
            began = time.perf_counter()
            if turns:
                answers = await in_turn(client, jobs, bodies.__getitem__, at_once)
            else:
                answers = await in_sessions(client, groups, bodies.__getitem__, at_once)
            wall = time.perf_counter() - began
        engine = await self._grown(before, len(jobs))
        cold = sum(job.cold for job in jobs)
        row: dict[str, Any] = {
            "variant": self.name,
            "kind": kind,
            "in_flight": at_once,
            "gpus": len(self.gpus),
            "cold": cold,
        }
        try:
            if kind != "text":
                check(f"{self.name}, {kind}, {at_once}", answers, engine, cold=cold, tokens=TOKENS)
            else:
                demand(
                    all(not a.problem and a.tokens == TOKENS for a in answers),
                    f"text: {[a.problem for a in answers][:2]}",
                )
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
            answers = await in_sessions(client, jobs, lambda job: self.body(first, job, 16), 2 * len(self.gpus))
        for answer in answers:
            demand(not answer.problem, f"{self.name}, warming up: {answer.problem}")

    async def short(self) -> None:
        """Cells that rank variants: text alone, and one session per client, whose first question is cold."""
        words = {Job(-1, n): text_body(self.state["model"], question(0, n), TOKENS) for n in range(1, 4)}
        await self._measure("text", 1, list(words), words, turns=False, groups=[list(words)])
        await self.cell("warm", 1, [[Job(0, turn) for turn in range(7)]])
        await self.cell("warm", 2, [[Job(n, turn) for turn in range(9)] for n in range(2)])
        await self.cell("cold", 1, [[Job(n, 0)] for n in range(5)])
        await self.cell("straight", 1, [[Job(n, 0)] for n in range(5)], straight=True)

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
        print(
            f"{self.name}: a decode step, us: {json.dumps({k: v for k, v in found.items() if k != 'kernels'})}",
            flush=True,
        )
        for kernel in found["kernels"]:
            print("   ", kernel, flush=True)
        self.bench.save()
