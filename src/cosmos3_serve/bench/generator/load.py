"""The load on a generator: requests when they are due, each by a client of its own, and what came back."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from pydantic import ValidationError

from cosmos3_serve.bench.generator import scenes
from cosmos3_serve.bench.generator.arrivals import Arrivals
from cosmos3_serve.bench.generator.records import Cell, Sample, Workload
from cosmos3_serve.bench.generator.shapes import Mix
from cosmos3_serve.client.http import Service
from cosmos3_serve.contract.batch import BatchResponse
from cosmos3_serve.errors import Cosmos3Error
from cosmos3_serve.retry import ONCE

COUNTER = "cosmos3_generator_inference_batch_size_sum"
JSON = {"Content-Type": "application/json"}


class Load:
    """
    Args:
        service: entered, with as many connections as requests.
        judge: keeps what is fetched of scenes, and judges it after each cell.
    """

    def __init__(
        self,
        service: Service,
        workload: Workload,
        *,
        judge: scenes.Judge | None = None,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._service, self._work, self._clock, self._sleep = service, workload, clock, sleep
        self._judge = judge if workload.fetch and workload.content == "scenes" else None
        self._name = f"bench-{secrets.token_hex(6)}"
        self._seed = workload.seed

    async def warm_up(self) -> None:
        """A sample of each shape, outside of every cell: the first of its shape costs more.

        Raises:
            Cosmos3Error: it was refused.
        """
        for shape in dict.fromkeys(shape for mix in self._work.mixes for shape in mix.shapes):
            body = self._body("warm", [shape.fields()])
            answer = await self._service.call(
                "POST", "/v1/batches", content=body, headers=JSON, retry=ONCE, read_s=None
            )
            if not answer.ok:
                raise answer.failure()

    async def cell(
        self, arrivals: Arrivals, mix: Mix, repeat: int, done: Callable[[], None] = lambda: None
    ) -> tuple[Cell, list[Sample]]:
        """Run one cell. A failed request is a record; cancelling gives up the requests in flight."""
        await self._connect(arrivals)
        before = await self._count()
        began = self._clock()
        found: list[Sample] = []

        async def one(number: int, due: float) -> None:
            found.extend(await self._request(arrivals.label, mix, repeat, number, due))
            done()

        async with asyncio.TaskGroup() as group:
            if arrivals.kind == "closed":
                waiting = iter(range(self._work.requests))

                async def client() -> None:
                    for number in waiting:
                        await one(number, self._clock())

                for _ in range(min(arrivals.clients, self._work.requests)):
                    group.create_task(client())
            else:
                # Every repeat has the same arrivals, so that repeats differ by the service alone.
                for number, offset in enumerate(arrivals.offsets(self._work.requests, self._work.seed)):
                    group.create_task(self._later(one, number, began + offset))
        after = await self._count()
        if self._judge:
            await self._judge.judge()
        counted = None if before is None or after is None else round(after - before)
        return Cell(repeat=repeat, arrivals=arrivals.label, mix=mix.label, counted=counted), found

    async def _later(self, one: Callable[[int, float], Awaitable[None]], number: int, due: float) -> None:
        await self._sleep(max(0.0, due - self._clock()))
        await one(number, due)

    async def _connect(self, arrivals: Arrivals) -> None:
        """Connections stand before the first request is due: a burst must not arrive at the pace of handshakes."""
        clients = arrivals.clients if arrivals.kind == "closed" else self._work.requests
        await asyncio.gather(*(self._service.call("GET", "/health", retry=ONCE) for _ in range(clients)))

    async def _count(self) -> float | None:
        answer = await self._service.call("GET", "/metrics", retry=ONCE)
        for line in answer.body.decode("utf-8", "replace").splitlines() if answer.ok else ():
            if line.startswith(COUNTER + " "):
                return float(line.split()[1])
        return None

    def _body(self, request: str, samples: list[dict[str, Any]]) -> bytes:
        listed = []
        for number, fields in enumerate(samples):
            # Another seed and another prompt each: no sample can be served from the work of another.
            listed.append({"name": f"s{number}", "seed": self._seed, **fields, **self._said(self._seed, fields)})
            self._seed += 1
        return json.dumps({"request_id": f"{self._name}-{request}-{self._seed}", "samples": listed}).encode()

    def _said(self, seed: int, fields: dict[str, Any]) -> dict[str, Any]:
        if self._work.content == "plain":
            return {"prompt": f"a red ball, take {seed}"}
        return {"prompt": scenes.asked(seed, fields).prompt, **(scenes.PICTURE if fields["num_frames"] == 1 else {})}

    async def _request(self, arrivals: str, mix: Mix, repeat: int, number: int, due: float) -> list[Sample]:
        size = self._work.samples
        asked = [mix.of(number * size + place).fields() for place in range(size)]
        seed = self._seed
        body = self._body(str(number), asked)
        error, answer, fetched = None, None, None
        files: dict[str, Path] = {}
        started = self._clock()
        try:
            answer = await self._post(body)
            fetched = await self._fetch(answer, files) if self._work.fetch else None
        except (Cosmos3Error, httpx.HTTPError, ValidationError) as failure:
            error = f"{type(failure).__name__}: {str(failure).splitlines()[0][:200]}"
        ended = self._clock()
        found = [
            Sample(
                repeat=repeat, arrivals=arrivals, mix=mix.label, request=number, name=f"s{place}", asked=fields,
                due=due, started=started, ended=ended, error=error, fetched=fetched,
                **({} if answer is None else _facts(answer, f"s{place}")),
            )
            for place, fields in enumerate(asked)
        ]  # fmt: skip
        for place, sample in enumerate(found):
            if self._judge and fetched and sample.name in files:
                self._judge.add(sample, scenes.asked(seed + place, asked[place]), files[sample.name])
        return found

    async def _post(self, body: bytes) -> BatchResponse:
        answer = await self._service.call("POST", "/v1/batches", content=body, headers=JSON, retry=ONCE, read_s=None)
        if not answer.ok:
            raise answer.failure()
        return BatchResponse.model_validate_json(answer.body)

    async def _fetch(self, answer: BatchResponse, files: dict[str, Path]) -> bool:
        """Whether every artifact has the bytes and the hash that the response declares.

        Args:
            files: takes where each sample's picture or clip is kept, if it is to be judged.
        """
        for artifact in answer.artifacts:
            digest, size = hashlib.sha256(), 0
            file = self._judge.file_for(artifact.path) if self._judge else None
            async with self._service.stream(f"/v1/artifacts/{artifact.path}") as said:
                with ExitStack() as stack:
                    kept = stack.enter_context(file.open("wb")) if file else None
                    async for piece in said.aiter_bytes():
                        digest.update(piece)
                        size += len(piece)
                        if kept:
                            kept.write(piece)
            if (said.status_code, size, digest.hexdigest()) != (200, artifact.bytes, artifact.sha256):
                return False
            if file:
                files[artifact.sample] = file
        return True


def _facts(answer: BatchResponse, name: str) -> dict[str, Any]:
    """What a response says of one sample."""
    output = next((output for output in answer.outputs if output.get("args", {}).get("name") == name), {})
    record = next((record for record in answer.samples if record.name == name), None)
    args = output.get("args", {})
    facts: dict[str, Any] = {
        "state": output.get("status"),
        "made": {field: args.get(field) for field in ("num_frames", "num_steps", "resolution")},
        "files": [(artifact.sha256, artifact.bytes) for artifact in answer.artifacts if artifact.sample == name],
        "served_by": {
            "revision": answer.framework_revision,
            "source": answer.server_source_revision,
            "guardrails": answer.guardrails,
            "weights": answer.weights or "unknown",
        },
    }
    if record is not None:
        facts["timings"] = record.timings
        if record.wave is not None:
            wave = record.wave
            facts |= {"coalesced_id": wave.coalesced_id, "coalesced": wave.coalesced, "inference": wave.inference_batch,
                      "inference_id": wave.inference_id, "mixed_shapes": wave.mixed_shapes}  # fmt: skip
    return facts
