"""Liveness: storage, hashing and disk may stand still, and a large artifact may be under way; the loop answers."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest
from support.asgi import Exchange
from support.batches import make_front
from support.core import MakeCore, image
from support.fake_engine import done, write
from support.fakes import until

from cosmos3_serve.contract.views import BatchState
from cosmos3_serve.generator.engines.job import EngineJob, EngineResult
from cosmos3_serve.generator.http import artifacts
from cosmos3_serve.generator.http.application import build_app
from cosmos3_serve.generator.queue import delivery
from cosmos3_serve.service.tokens import TokenBook

TOKEN, TENANT = "right-token-123", "default"
AUTH = [(b"authorization", f"Bearer {TOKEN}".encode())]
SIZE = 500_000_000
STUCK_S = 30.0


class Download(Exchange):
    """One GET whose body is counted and dropped; `chunk_out` says that a chunk has reached the client."""

    def __init__(self, path: str) -> None:
        super().__init__("GET", path, AUTH)
        self.bytes = self.chunks = 0
        self.chunk_out = asyncio.Semaphore(0)

    async def send(self, message: dict[str, Any]) -> None:
        body = message.pop("body", b"")
        if body:
            self.bytes, self.chunks = self.bytes + len(body), self.chunks + 1
            self.chunk_out.release()
        else:
            await super().send(message)


async def test_health_is_answered_between_any_two_chunks_while_storage_and_hashing_stand_still(
    make_core: MakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every blocking step waits in its thread: reads of conditioning media and hashing for the end of the test, the
    read of each further chunk for an answer of /health. A step on the loop would wait for ever."""
    core = await make_core(allowed_s3_roots="s3://b")
    app = build_app(make_front(core.coordinator, TokenBook(TOKEN, None)))  # type: ignore[arg-type]
    core.engine.script["big"] = [big]
    core.engine.script["v"] = [lambda job: (write(job, "vision.mp4"), done(job, files=[f"{job.key}/vision.mp4"]))[1]]
    await core.submit("big", id="large", tenant=TENANT)
    await core.finish("large", tenant=TENANT)
    await core.bucket.put_bytes("start.png", b"pixels")

    end, chunk_may_be_read = threading.Event(), threading.Semaphore(1)
    reading, hashing = threading.Event(), threading.Event()
    pread, verify = os.pread, delivery.verify

    def slow_pread(descriptor: int, size: int, offset: int) -> bytes:
        if size == len(b"pixels"):
            reading.set()
            assert end.wait(STUCK_S), "storage was read on the loop"
        else:
            assert chunk_may_be_read.acquire(timeout=STUCK_S), "a chunk was read on the loop, or /health not answered"
        return pread(descriptor, size, offset)

    def slow_verify(*args: Any) -> Any:
        hashing.set()
        assert end.wait(STUCK_S), "hashing ran on the loop"
        return verify(*args)

    monkeypatch.setattr(os, "pread", slow_pread)
    monkeypatch.setattr(delivery, "verify", slow_verify)
    ids = [f"r{i}" for i in range(16)]
    for i, id in enumerate(ids):
        conditioned = image("v", vision_path="s3://b/start.png", num_frames=5)
        await core.submit("a" if i % 2 else conditioned, id=id, tenant=TENANT)
    await until(lambda: reading.is_set() and hashing.is_set())

    download = Download("/v1/artifacts/large/big/vision.jpg")
    answered = 0

    async def ask_between() -> None:
        nonlocal answered
        while True:
            await download.chunk_out.acquire()
            health = await Exchange("GET", "/health", AUTH).run(app)
            assert health.status == 200
            answered += 1
            chunk_may_be_read.release()

    try:
        serving, asking = asyncio.create_task(download.run(app)), asyncio.create_task(ask_between())
        await asyncio.wait({serving, asking}, return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            await asking
        await serving
        await until(lambda: answered == download.chunks)
        asking.cancel()
        assert download.status == 200 and download.bytes == SIZE
        assert answered == -(-SIZE // artifacts.CHUNK_BYTES)
        states = [(await core.coordinator.view(id, tenant=TENANT)).state for id in ids]
        assert set(states) <= {BatchState.QUEUED, BatchState.RUNNING}, "not 16 in flight to the end"
    finally:
        end.set()
    for id in ids:
        await core.finish(id, tenant=TENANT)
        assert await core.codes(id, tenant=TENANT) == ["succeeded"]


def big(job: EngineJob) -> EngineResult:
    """A result whose file is large and, on the disk, a hole."""
    os.truncate(write(job), SIZE)
    return done(job)
