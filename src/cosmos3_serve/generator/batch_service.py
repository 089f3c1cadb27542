"""Batches: takes batches in. One caller at a time for each id, so that the same id can't be accepted twice."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import structlog

from cosmos3_serve.contract.batch import BatchRequest, body_sha256
from cosmos3_serve.contract.profile import EngineProfile
from cosmos3_serve.contract.records import SampleState
from cosmos3_serve.contract.wire import is_safe_name
from cosmos3_serve.errors import (
    Conflict,
    Cosmos3Error,
    Draining,
    InputError,
    InvalidRequestId,
    LimitExceeded,
    ModelNotLoaded,
    NotReady,
    QueueFull,
    SampleCode,
)
from cosmos3_serve.generator.completion import Completion
from cosmos3_serve.generator.engines.job import EngineInfo
from cosmos3_serve.generator.ledger.batch import Batch, Summary, accepted, sample_failed
from cosmos3_serve.generator.ledger.ledger import Ledger
from cosmos3_serve.generator.ledger.whole import whole
from cosmos3_serve.generator.ledger.writer import LedgerWriter
from cosmos3_serve.generator.ports import Clock, EnginePort
from cosmos3_serve.generator.queue.admission import Admitted, admit, readmit
from cosmos3_serve.generator.queue.dispatcher import Dispatcher
from cosmos3_serve.generator.queue.scheduler import WaveScheduler
from cosmos3_serve.generator.queue.staging import Stager
from cosmos3_serve.settings import GeneratorSettings

log = structlog.get_logger(__name__)

MAX_HELD_BYTES = 256 * 1024 * 1024  # requests of batches that have not ended, together
QUEUE_PAGE = 256  # samples
ENGINE_RETRY_S = 1.0
IDENTITY = ("engine", "revision", "backend", "checkpoint", "checkpoint_revision", "checkpoint_digest", "weights")


class Batches:
    def __init__(
        self,
        settings: GeneratorSettings,
        profile: EngineProfile,
        engine: EnginePort,
        ledger: Ledger,
        stager: Stager,
        clock: Clock,
        scheduler: WaveScheduler,
        dispatcher: Dispatcher,
        writer: LedgerWriter,
        closing: Completion,
    ) -> None:
        self._settings = settings
        self._profile = profile
        self._engine = engine
        self._ledger = ledger
        self._stager = stager
        self._clock = clock
        self._scheduler = scheduler
        self._dispatcher = dispatcher
        self._writer = writer
        self._completion = closing
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}
        self._identity: dict[str, str] | None = None
        self._promised = 0  # bytes of acceptances being written
        self.ready = asyncio.Event()
        self.draining = False

    @asynccontextmanager
    async def turn(self, request_id: str) -> AsyncIterator[None]:
        """Exclusive hold of one id; costs nothing once nobody holds it."""
        lock, users = self._turns.get(request_id, (asyncio.Lock(), 0))
        self._turns[request_id] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._turns[request_id]
            if users == 1:
                del self._turns[request_id]
            else:
                self._turns[request_id] = lock, users - 1

    async def learn_engine(self) -> EngineInfo:
        """Ask the engine what it is, until it answers."""
        while True:
            try:
                info = await self._engine.info()
                self._identity = _identity(info)
                return info
            except Exception as error:
                log.info("engine_not_there_yet", exception=type(error).__name__)
                await self._clock.sleep(ENGINE_RETRY_S)

    # ---- submitting

    async def submit(self, request: BatchRequest, *, tenant: str, detached: bool) -> Batch:
        if self.draining:
            raise Draining("the service is shutting down and takes no new batch", retry_after_s=10.0)
        request_id = request.request_id or uuid.uuid4().hex
        if not is_safe_name(request_id):
            raise InvalidRequestId("invalid request id")
        if request.model != self._settings.model:
            raise ModelNotLoaded(
                f"model {request.model[:128]!r} is not loaded", remedy=f"use {self._settings.model!r}"
            )  # fmt: skip
        if len(request.samples) > self._settings.max_samples:
            raise LimitExceeded(
                f"{len(request.samples)} samples; one batch takes at most {self._settings.max_samples}",
                remedy="split the batch",
            )
        request = request.model_copy(update={"request_id": request_id})
        fresh = self._ledger.find(request_id) is None
        try:
            return await whole(self._submit(request, tenant, detached))
        except asyncio.CancelledError:
            # The caller left before it could learn that its batch exists; nobody else will end it.
            if fresh and not detached:
                await whole(self.abandon(request_id))
            raise

    async def _submit(self, request: BatchRequest, tenant: str, detached: bool) -> Batch:
        sha256 = await asyncio.to_thread(body_sha256, request)
        async with self.turn(request.request_id):
            summary = self._ledger.find(request.request_id)
            if summary is not None:
                return await self._again(summary, request, sha256, tenant, detached)
            identity = self._require_engine()
            admitted = await asyncio.to_thread(
                admit,
                request,
                request.request_id,
                self._profile,
                self._stager,
                max_samples=self._settings.max_samples,
            )
            with self._room(admitted):
                record = accepted(
                    request.request_id,
                    tenant=tenant,
                    body_sha256=sha256,
                    model=request.model,
                    samples=[(work.name, work.seed) for work in admitted.work],
                    engine=identity,
                    detached=detached,
                    at=self._clock.now(),
                )
                batch = await self._ledger.accept(record, request.body(), request.uploads)
                await self._start(batch, admitted)
            return batch

    async def _start(self, batch: Batch, admitted: Admitted) -> None:
        """Queue the samples, a page at a time: ten thousand at once would hold up the loop."""
        self._completion.expect(batch.request_id, admitted.size)
        for page in admitted.pages(QUEUE_PAGE):
            self._writer.queued(len(page.work))
            self._dispatcher.enqueue(batch.request_id, page)
            await asyncio.sleep(0)

    @contextmanager
    def _room(self, admitted: Admitted) -> Iterator[None]:
        """Check that queue and memory take the batch, and keep its places in both while its acceptance is written."""
        held = self._completion.held_bytes + self._promised
        if held + admitted.size > MAX_HELD_BYTES:
            raise QueueFull(
                f"the requests that wait take {held} bytes of {MAX_HELD_BYTES}",
                remedy="try again when some have ended",
                retry_after_s=max(1.0, self._scheduler.durations.sample_s),
            )
        self._scheduler.check(admitted.tickets)
        self._scheduler.promised += len(admitted.tickets)
        self._promised += admitted.size
        try:
            yield
        finally:
            self._scheduler.promised -= len(admitted.tickets)
            self._promised -= admitted.size

    def _require_engine(self) -> dict[str, str]:
        if self._identity is None:
            raise NotReady("the engine has not answered yet", retry_after_s=10.0)
        return self._identity

    async def _again(self, summary: Summary, request: BatchRequest, sha256: str, tenant: str, detached: bool) -> Batch:
        """An id that is known: the same batch, or none of the caller's."""
        request_id = summary.request_id
        other_id = "use another request_id"
        if summary.tenant != tenant:
            raise Conflict(f"request_id {request_id!r} is taken", code="request_id_taken", remedy=other_id)
        if summary.damage is not None:
            text = f"the ledger of request_id {request_id!r} is damaged"
            raise Conflict(text, code="request_id_damaged", remedy=other_id)
        if summary.body_sha256 != sha256:
            text = f"request_id {request_id!r} was used with another body"
            raise Conflict(text, code="request_id_conflict", remedy=other_id)
        if summary.expired_at is not None:
            text = f"the batch with request_id {request_id!r} expired"
            raise Conflict(text, code="request_id_expired", remedy=other_id)
        batch = self._ledger.live(request_id)
        if batch is not None:
            if detached and not batch.detached:
                await self._writer.write(request_id, {"kind": "detached"})
            return batch
        batch = await self._ledger.load(request_id)
        again = batch.retryable()
        if not again or batch.engine != self._identity:
            return batch
        seeds = {index: batch.samples[index].seed for index in again}
        admitted = await asyncio.to_thread(
            readmit, request.samples, seeds, request_id, self._profile, self._stager
        )  # fmt: skip
        with self._room(admitted):
            batch = await self._ledger.reopen(request_id, again, detached=detached)
            await self._start(batch, admitted)
        return batch

    # ---- ending early, and going on after a restart

    async def abandon(self, request_id: str) -> None:
        async with self.turn(request_id):
            batch = self._ledger.live(request_id)
            if batch is not None and not batch.detached:
                await self._dispatcher.withdraw(request_id, SampleCode.CANCELLED, "its caller left before it started")

    async def resume(self, batch: Batch) -> None:
        """Queue again what waited when an earlier process stopped. What can't go on is `interrupted`."""
        request_id = batch.request_id
        waiting = {i: s.seed for i, s in enumerate(batch.samples) if s.state is SampleState.QUEUED}
        reason = ""
        try:
            if batch.engine != self._identity:
                reason = "the service restarted with another engine or checkpoint"
            else:
                samples = (await self._ledger.request(request_id))["samples"]
                admitted = await asyncio.to_thread(readmit, samples, waiting, request_id, self._profile, self._stager)
                await self._start(batch, admitted)
                return
        except (InputError, ValueError, KeyError, IndexError) as error:
            reason = error.detail if isinstance(error, InputError) else "the stored request can't be read"
        except Cosmos3Error as error:
            reason = error.detail
        message = f"the service restarted and can't go on: {reason}"
        failed = [sample_failed(index, SampleCode.INTERRUPTED, message, self._clock.now()) for index in waiting]
        await self._writer.insist(request_id, *failed)
        await self._completion.close(request_id)


def _identity(info: EngineInfo) -> dict[str, str]:
    return {name: str(getattr(info, name)) for name in IDENTITY}
