"""Front: everything that the HTTP routes stand on, put together once by whoever serves them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from cosmos3_serve.contract.batch import BatchRequest
from cosmos3_serve.contract.profile import EngineProfile
from cosmos3_serve.contract.views import AssetRow, BatchEvent, BatchView
from cosmos3_serve.generator.engines.job import EngineInfo
from cosmos3_serve.service.metrics import GeneratorMetrics
from cosmos3_serve.service.readiness import Readiness
from cosmos3_serve.service.tokens import TokenBook
from cosmos3_serve.settings import GeneratorSettings


class Artifact(Protocol):
    """A file that the ledger declares: where it is, how large, and its SHA-256 in hex."""

    @property
    def path(self) -> Path: ...
    @property
    def bytes(self) -> int: ...
    @property
    def sha256(self) -> str: ...


class Response(Protocol):
    """The stored response of a batch: its size in bytes, and its pieces, which can be read once."""

    @property
    def size(self) -> int: ...
    def chunks(self) -> AsyncIterator[bytes]: ...


class QueueFigures(Protocol):
    @property
    def depth(self) -> int: ...


class BatchService(Protocol):
    """What the routes ask of the coordinator. Batches of other tenants are NotFound throughout."""

    async def submit(self, request: BatchRequest, *, tenant: str, detached: bool = False) -> BatchView: ...
    async def request(self, request_id: str, *, tenant: str) -> dict[str, Any]: ...
    async def wait_ended(self, request_id: str, *, tenant: str) -> None: ...
    async def response(self, request_id: str, *, tenant: str) -> Response: ...
    async def view(self, request_id: str, *, tenant: str) -> BatchView: ...
    async def list(self, *, tenant: str, limit: int, after: str | None) -> list[BatchView]: ...
    def events(self, request_id: str, *, tenant: str, last_event_id: int = 0) -> AsyncIterator[BatchEvent]: ...
    async def cancel(self, request_id: str, *, tenant: str) -> BatchView: ...
    async def expire(self, request_id: str, *, tenant: str) -> bool: ...
    async def abandon(self, request_id: str, *, tenant: str) -> None: ...
    async def artifact(self, path: str, *, tenant: str) -> Artifact: ...
    def stats(self) -> QueueFigures: ...


class Waiters:
    """How many clients wait for which batch over a blocking POST: the last one to leave gives the batch up.

    Whether a batch can be given up at all is the coordinator's to know.
    """

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], int] = {}

    def arrive(self, tenant: str, request_id: str) -> None:
        self._waiting[tenant, request_id] = self._waiting.get((tenant, request_id), 0) + 1

    def leave(self, tenant: str, request_id: str) -> bool:
        """One client is gone or served. Whether none is left."""
        key = (tenant, request_id)
        left = self._waiting.pop(key) - 1
        if left:
            self._waiting[key] = left
        return not left


@dataclass(slots=True)
class Front:
    """The parts, named.

    Attributes:
        batches: None until the ledger is open; until then every batch route answers 503.
        accepting: false until the canary has passed, and POST answers 503.
        engine: what the engine said about itself, None until it answered.
        system: fills `GET /system-info`; may take a while, must not block the loop.
        max_ongoing: concurrency of the model deployment, as `/ready` reports it.
        draining: the service takes no more batches.
        payload_verified: whether the checkpoint's bytes were checked against the Hub's hashes.
        assets: what was fetched and checked beside the checkpoint.
    """

    settings: GeneratorSettings
    profile: EngineProfile
    source_revision: str
    book: TokenBook
    metrics: GeneratorMetrics
    readiness: Readiness
    system: Callable[[], Awaitable[Mapping[str, Any]]]
    max_ongoing: int
    batches: BatchService | None = None
    accepting: bool = False
    engine: EngineInfo | None = None
    draining: bool = False
    payload_verified: bool | None = None
    assets: tuple[AssetRow, ...] = ()
    waiters: Waiters = field(default_factory=Waiters)
