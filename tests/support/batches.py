"""A coordinator for tests of the HTTP layer: batches end when told, files are what was put there."""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cosmos3_serve.contract.batch import BatchRequest, body_sha256
from cosmos3_serve.contract.profile import diffusers_profile
from cosmos3_serve.contract.records import SampleState
from cosmos3_serve.contract.views import BatchEvent, BatchState, BatchView, SampleView
from cosmos3_serve.errors import Conflict, Cosmos3Error, NotFound
from cosmos3_serve.generator.http.front import Front
from cosmos3_serve.service.metrics import GeneratorMetrics
from cosmos3_serve.service.readiness import Readiness
from cosmos3_serve.service.tokens import TokenBook
from cosmos3_serve.settings import GeneratorSettings

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


@dataclass
class File:
    path: Path
    bytes: int
    sha256: str


@dataclass
class _Batch:
    request: BatchRequest
    tenant: str
    state: BatchState = BatchState.RUNNING
    detached: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    events: list[BatchEvent] = field(default_factory=list)


@dataclass
class _Stored:
    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self.data


@dataclass
class Depth:
    depth: int


class FakeDesk:
    def __init__(self) -> None:
        self.batches: dict[str, _Batch] = {}
        self.files: dict[str, tuple[str, File]] = {}
        self.abandoned: list[str] = []
        self.refuse: Cosmos3Error | None = None
        self.open_streams = 0

    def end(self, request_id: str) -> None:
        batch = self.batches[request_id]
        batch.state = BatchState.SUCCEEDED
        batch.ended.set()
        self.tell(request_id, "end")

    def tell(self, request_id: str, kind: str) -> None:
        batch = self.batches[request_id]
        batch.events.append(BatchEvent(id=len(batch.events) + 1, type=kind, at=NOW))  # type: ignore[arg-type]
        batch.changed.set()

    def put(self, path: Path, name: str, content: bytes, tenant: str = "default") -> File:
        path.write_bytes(content)
        file = File(path, len(content), hashlib.sha256(content).hexdigest())
        self.files[name] = (tenant, file)
        return file

    def _mine(self, request_id: str, tenant: str) -> _Batch:
        batch = self.batches.get(request_id)
        if batch is None or batch.tenant != tenant:
            raise NotFound("no such batch")
        return batch

    async def submit(self, request: BatchRequest, *, tenant: str, detached: bool = False) -> BatchView:
        if self.refuse:
            raise self.refuse
        request_id = request.request_id or f"drawn-{len(self.batches)}"
        known = self.batches.setdefault(request_id, _Batch(request, tenant))
        known.detached = known.detached or detached
        if body_sha256(known.request) != body_sha256(request):
            raise Conflict("same id, other body")
        return await self.view(request_id, tenant=tenant)

    async def wait_ended(self, request_id: str, *, tenant: str) -> None:
        await self._mine(request_id, tenant).ended.wait()

    async def response(self, request_id: str, *, tenant: str) -> _Stored:
        batch = self._mine(request_id, tenant)
        if not batch.ended.is_set():
            raise Conflict("still running", code="batch_not_ended")
        return _Stored(json.dumps({"request_id": request_id, "names": batch.request.names}).encode())

    async def view(self, request_id: str, *, tenant: str) -> BatchView:
        batch = self._mine(request_id, tenant)
        samples = [SampleView(name=n, state=SampleState.RUNNING) for n in batch.request.names]
        return BatchView(
            request_id=request_id, state=batch.state, model="Cosmos3-Nano", created_at=NOW, samples=samples
        )

    async def list(self, *, tenant: str, limit: int, after: str | None) -> list[BatchView]:
        ids = sorted(i for i, b in self.batches.items() if b.tenant == tenant and (after is None or i > after))
        return [await self.view(i, tenant=tenant) for i in ids[:limit]]

    async def events(self, request_id: str, *, tenant: str, last_event_id: int = 0) -> AsyncIterator[BatchEvent]:
        batch = self._mine(request_id, tenant)
        self.open_streams += 1
        try:
            sent = last_event_id
            while True:
                while sent < len(batch.events):
                    event = batch.events[sent]
                    sent += 1
                    yield event
                    if event.type == "end":
                        return
                batch.changed.clear()
                await batch.changed.wait()
        finally:
            self.open_streams -= 1

    async def cancel(self, request_id: str, *, tenant: str) -> BatchView:
        self._mine(request_id, tenant).state = BatchState.CANCELLED
        return await self.view(request_id, tenant=tenant)

    async def abandon(self, request_id: str, *, tenant: str) -> None:
        if not self.batches[request_id].detached:
            self.abandoned.append(request_id)

    async def artifact(self, path: str, *, tenant: str) -> File:
        owner, file = self.files.get(path, ("", None))
        if file is None or owner != tenant:
            raise NotFound("no such file")
        return file

    def stats(self) -> Depth:
        return Depth(sum(not b.ended.is_set() for b in self.batches.values()))


async def _system() -> dict[str, Any]:
    return {"accelerators": [], "ray_cluster_resources": {"CPU": 2.0}}


def make_front(batches: FakeDesk | None, book: TokenBook, **settings: Any) -> Front:
    return Front(
        settings=GeneratorSettings(engine="diffusers", guardrails=False, checkpoint="tiny", **settings),
        profile=diffusers_profile("0.42.1", tiny=True),
        source_revision="a" * 40,
        book=book,
        metrics=GeneratorMetrics(),
        readiness=Readiness(),
        system=_system,
        max_ongoing=24,
        batches=batches,
        accepting=True,
    )


async def until(condition: Any, timeout_s: float = 5.0) -> None:
    """Yield to the loop until something has happened; fails after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.005)
