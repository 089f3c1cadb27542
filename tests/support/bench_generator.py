"""A double of the generator service for its benchmark: it coalesces, counts and tells, and makes faults on demand.

It makes no picture: its artifacts are a few bytes that hold the prompt.
"""

import asyncio
import hashlib
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from support.bench_server import Faults

TOKEN = "bench-token"
SOURCE = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class BenchGenerator:
    """`limit` samples in a batch, `window_s` after the first of them; each batch takes `batch_s`."""

    limit: int = 4
    window_s: float = 0.02
    batch_s: float = 0.005
    tells: bool = True  # whether it has our additive fields and metrics, or the baseline's contract alone
    ready: bool = True
    faults: Faults = field(default_factory=Faults)
    # What a sample's file holds, where it is to be a real one.
    draw: Callable[[dict[str, Any]], bytes] | None = None

    def __post_init__(self) -> None:
        self.url = ""
        self.served = itertools.count(1)
        self.batches = itertools.count(1)
        self.counted = 0
        self.timer: asyncio.TimerHandle | None = None
        self.posts: list[tuple[float, dict[str, Any]]] = []
        self.files: dict[str, bytes] = {}
        self.waiting: list[tuple[dict[str, Any], asyncio.Future[dict[str, Any]]]] = []

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/health", lambda _: JSONResponse({"status": "ok"})),
                Route("/ready", self.readiness),
                Route("/metrics", self.metrics),
                Route("/v1/batches", self.post, methods=["POST"]),
                Route("/v1/artifacts/{path:path}", self.artifact),
            ]
        )

    async def readiness(self, _: Request) -> Response:
        if not self.ready:
            return JSONResponse({"detail": "model deployment is not ready"}, status_code=503)
        report = {
            "status": "ready", "backend": "bench-double", "model": "Cosmos3-Nano", "guardrails": False,
            "world_size": 1, "max_batch_size": self.limit, "model_max_ongoing_requests": self.limit,
            "batch_wait_timeout_s": self.window_s, "framework_revision": "double-1", "server_source_revision": SOURCE,
        }  # fmt: skip
        return JSONResponse(report | ({"weights": "random", "max_num_seqs": self.limit} if self.tells else {}))

    async def metrics(self, _: Request) -> Response:
        if not self.tells:
            return JSONResponse({"detail": "Not Found"}, status_code=404)
        return PlainTextResponse(f"cosmos3_generator_inference_batch_size_sum {float(self.counted)}\n")

    async def artifact(self, request: Request) -> Response:
        data = self.files[request.path_params["path"]]
        return Response(data[:-1] if self.faults.kind == "truncate" else data)

    async def post(self, request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return JSONResponse({"detail": "invalid bearer token"}, status_code=401)
        body = await request.json()
        self.posts.append((time.perf_counter(), body))
        if self.faults.kind == "refuse" and self._hit(next(self.served)):
            return JSONResponse({"detail": "no"}, status_code=500)
        made = await asyncio.gather(*(self._sample(body["request_id"], sample) for sample in body["samples"]))
        answer: dict[str, Any] = {
            "schema_version": "npa.cosmos3.ray-serve.batch.v1", "request_id": body["request_id"],
            "model": "Cosmos3-Nano", "batch_size": len(made), "guardrails": False, "max_batch_size": self.limit,
            "outputs": [m["output"] for m in made], "artifacts": [a for m in made for a in m["artifacts"]],
            "framework_revision": "double-1", "server_source_revision": SOURCE,
        }  # fmt: skip
        if self.tells:
            weights = "pretrained" if any(m["fault"] == "change" for m in made) else "random"
            answer |= {"weights": weights, "samples": [m["record"] for m in made]}
        return JSONResponse(answer)

    def _hit(self, number: int) -> bool:
        return bool(self.faults.every) and number % self.faults.every == 0

    async def _sample(self, request_id: str, sample: dict[str, Any]) -> dict[str, Any]:
        done: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.waiting.append((sample, done))
        if len(self.waiting) == self.limit:
            self._flush()
        elif len(self.waiting) == 1:
            self.timer = asyncio.get_running_loop().call_later(self.window_s, self._flush)
        came = time.perf_counter()
        wave = await done
        fault = self.faults.kind if self._hit(next(self.served)) else ""
        seconds = 60.0 if fault == "long" else (time.perf_counter() - came) / 2
        data = b"the same" if fault == "copy" else json.dumps([sample["prompt"], sample["seed"]]).encode()
        if self.draw is not None:
            data = await asyncio.to_thread(self.draw, sample)
        path = f"{request_id}/{sample['name']}/vision.{'jpg' if sample['num_frames'] == 1 else 'mp4'}"
        self.files[path] = data
        digest = hashlib.sha256(data).hexdigest()
        artifact = {"sample": sample["name"], "path": path, "bytes": len(data), "sha256": digest}
        steps = sample["num_steps"] - (1 if fault == "shape" else 0)
        args = {"name": sample["name"], "num_frames": sample["num_frames"], "num_steps": steps, "resolution": "256"}
        record = {
            "name": sample["name"], "state": "succeeded",
            "timings": {} if fault == "untimed" else {"queue": 0.0, "inference": seconds},
            "wave": None if fault == "silent" else wave | ({"inference_batch": 9} if fault == "share" else {}),
        }  # fmt: skip
        status = "error" if fault == "error" else "success"
        output = {"args": args, "status": status, "message": None, "stack_trace": None, "outputs": []}
        self.counted += 2 if fault == "foreign" else 1
        kept = [] if fault in ("error", "empty") else [artifact]
        return {"output": output, "artifacts": kept, "record": record, "fault": fault}

    def _flush(self) -> None:
        if self.timer is not None:
            self.timer.cancel()  # its samples are out already
        together, self.waiting = self.waiting[: self.limit], self.waiting[self.limit :]
        if together:
            asyncio.get_running_loop().call_later(self.batch_s, self._finish, together)

    def _finish(self, together: list[tuple[dict[str, Any], asyncio.Future[dict[str, Any]]]]) -> None:
        number = f"b{next(self.batches)}"
        for slot, (_, done) in enumerate(together):
            if not done.done():
                done.set_result(
                    {"coalesced_id": f"c-{number}", "coalesced": len(together), "inference_id": f"i-{number}",
                     "inference_batch": len(together), "slot": slot, "mixed_shapes": False, "neighbours": []}
                )  # fmt: skip
