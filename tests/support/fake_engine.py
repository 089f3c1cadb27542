"""A scripted engine behind the coordinator's port: coalesces like `@serve.batch`, fails as told, writes real files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cosmos3_serve.contract.records import SampleCompute
from cosmos3_serve.errors import SampleCode
from cosmos3_serve.generator.engines.job import EngineError, EngineInfo, EngineJob, EngineResult, WaveRecord

Behaviour = str | BaseException | Callable[[EngineJob], EngineResult]
INFO = EngineInfo(
    engine="diffusers",
    revision="diffusers-0.0.0",
    backend="diffusers-ray-serve",
    checkpoint="tiny",
    checkpoint_revision="",
    checkpoint_digest="d" * 64,
    weights="random",
    device="cpu",
    dtype="float32",
    supported_modes=("text2image",),
)
COMPUTE = SampleCompute(
    device="cpu",
    dtype="float32",
    threads=3,
    cpu="x86_64 GenuineIntel 6/143/8",
    cpu_capability="AVX512",
    libraries={"torch": "2.13.0+cpu"},
    environment={"OMP_NUM_THREADS": "3"},
)


class FakeEngine:
    """Attributes:
    script: sample name to what its calls do, one entry per call, the last one for ever. `ok`, `hang`, `oom`, `slow`
        (waits for `gate`), `wrong` (answers another name), an exception (raised for its whole batch), or a function.
    calls: the batches that were run, as lists of `request_id/name`.
    """

    def __init__(self, root: Path, *, limit: int = 4, info: EngineInfo = INFO) -> None:
        self.root = root
        self.limit = limit
        self._info = info
        self.script: dict[str, list[Behaviour]] = {}
        self.calls: list[list[str]] = []
        self.jobs: dict[str, EngineJob] = {}
        self.gate = asyncio.Event()
        self.steps: dict[str, tuple[int, int]] = {}
        self.cancelled: list[str] = []
        self.obeys_cancel = False
        self.replaced = 0
        self.down = 0
        self._pending: list[tuple[EngineJob, asyncio.Future[EngineResult]]] = []
        self._batches: set[asyncio.Task[None]] = set()
        self._one_at_a_time = asyncio.Lock()

    async def info(self) -> EngineInfo:
        if self.down:
            self.down -= 1
            raise ConnectionError("no replica")
        return self._info

    async def generate(self, job: EngineJob) -> EngineResult:
        self.jobs[job.key] = job
        future: asyncio.Future[EngineResult] = asyncio.get_running_loop().create_future()
        self._pending.append((job, future))
        if len(self._pending) == 1:
            asyncio.get_running_loop().call_soon(self._flush)
        return await future

    def _flush(self) -> None:
        batch, self._pending = self._pending[: self.limit], self._pending[self.limit :]
        task = asyncio.create_task(self._run(batch))
        self._batches.add(task)
        task.add_done_callback(self._batches.discard)
        if self._pending:
            asyncio.get_running_loop().call_soon(self._flush)

    async def _run(self, batch: list[tuple[EngineJob, asyncio.Future[EngineResult]]]) -> None:
        keys = [job.key for job, _ in batch]
        self.calls.append(keys)
        acts = [self._next(job.name) for job, _ in batch]
        number = len(self.calls)
        if "hang" in acts:
            return
        if "slow" in acts:
            await self.gate.wait()
        broken = next((act for act in acts if isinstance(act, BaseException)), None)
        for slot, ((job, future), act) in enumerate(zip(batch, acts, strict=True)):
            if future.done():
                continue
            if broken is not None:
                future.set_exception(broken)
                continue
            company = WaveRecord(
                coalesced_id=f"c{number}",
                coalesced=len(batch),
                inference_id=f"i{number}",
                inference_batch=len(batch),
                slot=slot,
            )
            if job.key in self.cancelled and self.obeys_cancel:
                future.set_result(failed(job, SampleCode.CANCELLED, "stopped at step 2", company))
            elif act == "oom":
                future.set_result(failed(job, SampleCode.OUT_OF_MEMORY, "the device is out of memory", company))
            elif act == "wrong":
                future.set_result(done(job, company).model_copy(update={"name": "somebody-else"}))
            elif callable(act):
                future.set_result(act(job))
            else:
                write(job)
                future.set_result(done(job, company))

    def _next(self, name: str) -> Behaviour:
        acts = self.script.get(name, ["ok"])
        return acts.pop(0) if len(acts) > 1 else acts[0]

    replacing = False
    is_loading = False

    async def loading(self) -> bool:
        return self.is_loading

    async def progress(self) -> dict[str, tuple[int, int]]:
        return dict(self.steps)

    async def cancel(self, keys: list[str]) -> None:
        self.cancelled += keys

    async def replace(self) -> None:
        self.replaced += 1


def write(job: EngineJob, name: str = "vision.jpg", data: bytes | None = None) -> Path:
    """The file a generation leaves; its content tells which sample it is."""
    path = Path(job.output_dir) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(f"{job.key}:{job.args['seed']}".encode() if data is None else data)
    return path


def done(
    job: EngineJob,
    company: WaveRecord | None = None,
    *,
    files: list[str] | None = None,
    args: dict[str, Any] | None = None,
    **changes: Any,
) -> EngineResult:
    """A good result, or one with the given changes."""
    outputs: dict[str, Any] = {
        "args": {**job.args, **(args or {})},
        "status": "success",
        "message": None,
        "stack_trace": None,
        "outputs": [{"content": {}, "files": files or [f"{job.key}/vision.jpg"]}],
        **changes,
    }
    return EngineResult(
        name=job.name,
        outputs=outputs,
        wave=company or WaveRecord(),
        compute=COMPUTE,
        phases={"inference": 0.5, "encode": 0.1},
        guardrails={"configured": False, "applied": False, "checks": [{"check": "prompt", "decision": "not_run"}]},
    )


def failed(job: EngineJob, code: SampleCode, message: str, company: WaveRecord | None = None) -> EngineResult:
    return EngineResult(
        name=job.name,
        error=EngineError(code=code, message=message, retryable=code.retryable),
        wave=company or WaveRecord(),
    )
