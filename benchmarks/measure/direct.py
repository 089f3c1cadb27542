"""The engine without a service: a process that runs waves as they are told, one JSON line each way.

    {"waves": [[job, …], …]}  ->  {"seconds": …, "cpu_s": …, "files": {"request/sample/vision.jpg": sha256, …}}

A wave denoises while the wave before it is decoded, encoded and written in a second thread: the best that a caller of
the engine can do, and what the service does too. Hashing comes after the clock has stopped.
"""

from __future__ import annotations

import hashlib
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from measure.result import demand

from cosmos3_serve.contract.profile import diffusers_profile
from cosmos3_serve.contract.resolve import resolve_sample
from cosmos3_serve.contract.sample import SampleOverrides

MODULE = ("-m", "measure.direct")


class DirectEngine:
    """Context manager around the process.

    Args:
        program: what the interpreter is told to run in place of this module; it calls `serve`.
    """

    def __init__(
        self, root: Path, cache: Path, wave_limit: int, *, device: str = "cpu", program: Sequence[str] = MODULE
    ) -> None:
        self.root, self._limit = root, wave_limit
        self._process = subprocess.Popen(
            [sys.executable, *program, str(root), str(cache), str(wave_limit), device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
            start_new_session=True,  # as the service has: a kernel that shares by session shares alike
        )
        self._read()

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, request_id: str, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """The samples in waves of the limit, in order."""
        jobs = [_job(self.root, request_id, sample) for sample in samples]
        waves = [jobs[i : i + self._limit] for i in range(0, len(jobs), self._limit)]
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"waves": waves}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        demand(bool(line), "the direct engine's process ended")
        found: dict[str, Any] = json.loads(line)
        demand("failed" not in found, f"the direct engine failed: {found.get('failed')}")
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.kill()
        self._process.wait()


def _job(root: Path, request_id: str, sample: dict[str, Any]) -> dict[str, Any]:
    profile = diffusers_profile(version("diffusers"), tiny=True)
    resolved = resolve_sample(SampleOverrides.model_validate(sample), profile, seed=sample["seed"])
    directory = str(root / request_id / sample["name"])
    args = {**resolved.model_dump(mode="json"), "output_dir": directory}
    return {"request_id": request_id, "name": sample["name"], "output_dir": directory, "args": args}


def serve(root: Path, cache: Path, wave_limit: int, device: str) -> None:
    """Read orders from stdin until it ends."""
    from cosmos3_serve.generator.engines.diffusers.engine import DiffusersEngine
    from cosmos3_serve.generator.engines.job import EngineJob
    from cosmos3_serve.weights.checkpoint import resolve_checkpoint

    checkpoint = resolve_checkpoint("tiny", cache)
    engine = DiffusersEngine(checkpoint, output_root=root, max_num_seqs=wave_limit, device=device, guardrails=None)
    finishing = ThreadPoolExecutor(1)
    print(json.dumps({"loaded": True}), flush=True)
    for line in sys.stdin:
        waves = [[EngineJob.model_validate(job) for job in wave] for wave in json.loads(line)["waves"]]
        began, cpu = time.perf_counter(), _cpu()
        results = []
        for wave in waves:
            items = engine.denoise(wave, lambda *_: None, lambda _: False)
            results += [finishing.submit(engine.finish, item) for item in items]
        done = [result.result() for result in results]
        seconds, cpu = time.perf_counter() - began, _cpu() - cpu
        failed = next((result.error.message for result in done if result.error), None)
        if failed:
            print(json.dumps({"failed": failed}), flush=True)
            continue
        files = [file for result in done for output in result.outputs["outputs"] for file in output["files"]]
        hashes = {file: hashlib.sha256((root / file).read_bytes()).hexdigest() for file in files}
        print(json.dumps({"seconds": seconds, "cpu_s": cpu, "files": hashes}), flush=True)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
