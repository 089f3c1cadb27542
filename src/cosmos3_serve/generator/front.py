"""Front: everything that the HTTP routes stand on, put together once by whoever serves them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from cosmos3_serve.contract.ledger_view import BatchEvent, BatchView
from cosmos3_serve.contract.profile import EngineProfile
from cosmos3_serve.contract.request import BatchRequest
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


class Desk(Protocol):
    """What the routes ask of the coordinator. Batches of other tenants are NotFound throughout."""

    async def submit(self, request: BatchRequest, *, tenant: str) -> BatchView: ...
    async def wait_ended(self, request_id: str, *, tenant: str) -> None: ...
    async def response(self, request_id: str, *, tenant: str) -> bytes: ...
    async def view(self, request_id: str, *, tenant: str) -> BatchView: ...
    async def list(self, *, tenant: str, limit: int, after: str | None) -> list[BatchView]: ...
    def events(self, request_id: str, *, tenant: str, last_event_id: int = 0) -> AsyncIterator[BatchEvent]: ...
    async def cancel(self, request_id: str, *, tenant: str) -> BatchView: ...
    async def abandon(self, request_id: str, *, tenant: str) -> None: ...
    async def artifact(self, path: str, *, tenant: str) -> Artifact: ...


class Waiters:
    """Who waits for which batch over a blocking POST, so that a lost client ends its own batch and no other's.

    A batch is given up when the last of its blocking clients leaves, unless it was also asked for asynchronously: that
    one ends only by DELETE (source: rulings, generator 10).

    Args:
        remember: batches that were asked for asynchronously; at least as many as can be unfinished at once.
    """

    def __init__(self, remember: int) -> None:
        self._waiting: dict[tuple[str, str], int] = {}
        self._detached: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._remember = remember

    def detach(self, tenant: str, request_id: str) -> None:
        """An asynchronous POST asked for the batch."""
        self._detached[tenant, request_id] = None
        self._detached.move_to_end((tenant, request_id))
        while len(self._detached) > self._remember:
            self._detached.popitem(last=False)

    def arrive(self, tenant: str, request_id: str) -> None:
        self._waiting[tenant, request_id] = self._waiting.get((tenant, request_id), 0) + 1

    def leave(self, tenant: str, request_id: str) -> bool:
        """One client is gone or served. Whether nobody is left who wants the batch."""
        key = (tenant, request_id)
        left = self._waiting.pop(key) - 1
        if left:
            self._waiting[key] = left
        return not left and key not in self._detached


@dataclass(slots=True)
class Front:
    """The parts, named. `desk` is None until the service can take batches; then POST answers 503.

    Attributes:
        engine: what the engine said about itself, None until it answered.
        system: fills `GET /system-info`; may take a while, must not block the loop.
        max_ongoing: concurrency of the model deployment, as `/ready` reports it.
        draining: the service takes no more batches.
    """

    settings: GeneratorSettings
    profile: EngineProfile
    source_revision: str
    book: TokenBook
    metrics: GeneratorMetrics
    readiness: Readiness
    system: Callable[[], Awaitable[Mapping[str, Any]]]
    max_ongoing: int
    desk: Desk | None = None
    engine: EngineInfo | None = None
    draining: bool = False
    waiters: Waiters = field(init=False)

    def __post_init__(self) -> None:
        self.waiters = Waiters(self.settings.queue_limit + 2 * self.settings.max_batch_size + 64)
