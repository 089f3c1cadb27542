"""Coordinator: what a batch's callers can ask for, and the one place where the core's parts are put together.

    submit ─► admission (checks everything) ─► ledger (durable) ─► dispatcher (queue, staging, waves) ─► engine
                                                     ▲                        │
       view, events, response, artifact ◄────────────┴── writer ◄── delivery (verify, hash) ◄─────┘

It knows no HTTP, no Ray and no torch. Batches of other tenants are NotFound throughout. Decisions beyond the specs:
an id whose batch expired stays taken (409 `request_id_expired`) until its tombstone is pruned; a batch is rerun only on
the engine and checkpoint that it began on, else its stored outcome stands.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import structlog

from cosmos3_serve.contract.batch import BatchRequest
from cosmos3_serve.contract.profile import EngineProfile
from cosmos3_serve.contract.records import SampleState
from cosmos3_serve.contract.views import BatchEvent, BatchState, BatchView
from cosmos3_serve.errors import Conflict, Draining, NotFound, SampleCode, SampleError, ServiceFailure
from cosmos3_serve.generator.batch_service import Batches
from cosmos3_serve.generator.completion import Completion
from cosmos3_serve.generator.guardrails.gate import TextGuardPort, text_gate
from cosmos3_serve.generator.ledger.artifacts import declared_artifact
from cosmos3_serve.generator.ledger.batch import Batch, SampleDetail, Summary
from cosmos3_serve.generator.ledger.events import EventHub, instant
from cosmos3_serve.generator.ledger.files import StoredResponse
from cosmos3_serve.generator.ledger.ledger import Ledger
from cosmos3_serve.generator.ledger.outcomes import ArtifactFile, Service, batch_view, summary_view
from cosmos3_serve.generator.ledger.retention import Janitor, RetentionPolicy, to_expire
from cosmos3_serve.generator.ledger.writer import LedgerWriter
from cosmos3_serve.generator.ports import Clock, EnginePort, NoObserver, Observer, SystemClock
from cosmos3_serve.generator.queue.delivery import Delivery
from cosmos3_serve.generator.queue.dispatcher import Dispatcher
from cosmos3_serve.generator.queue.kept_durations import KeptDurations
from cosmos3_serve.generator.queue.scheduler import WaveScheduler
from cosmos3_serve.generator.queue.staging import Stager
from cosmos3_serve.generator.queue.watchdog import Watchdog
from cosmos3_serve.generator.stats import QueueStats
from cosmos3_serve.settings import GeneratorSettings

log = structlog.get_logger(__name__)
CANCEL_S = 10.0
LANDING_S = 10.0
MAX_LISTED = 500
LARGE = 64


class Coordinator:
    """Args:
    profile: the engine's abilities, as requests are resolved for it.
    ledger, stager: of the same output root.
    source_revision: `server_source_revision` of every response, 40 hex.
    guard: checks texts before any engine work; must be given while guardrails are on.
    waves_in_flight: default 1 with a wave cap (the engine runs one call at a time and the cap counts its waiting),
        else 2, so that one wave decodes and is hashed while the next denoises.
    """

    def __init__(
        self,
        settings: GeneratorSettings,
        profile: EngineProfile,
        engine: EnginePort,
        ledger: Ledger,
        stager: Stager,
        clock: Clock | None = None,
        *,
        source_revision: str,
        observer: Observer | None = None,
        waves_in_flight: int | None = None,
        guard: TextGuardPort | None = None,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._ledger = ledger
        self._clock = clock = clock or SystemClock()
        observer = observer or NoObserver()
        self._hub = EventHub()
        self._writer = LedgerWriter(ledger, self._hub, clock, observer)
        self._delivery = Delivery(ledger.output_root, clock, observer)
        wave_limit = min(settings.max_batch_size, settings.inference_batch_limit)
        self._scheduler = WaveScheduler(
            queue_limit=settings.queue_limit,
            wave_limit=wave_limit,
            in_flight=waves_in_flight or (1 if profile.wave_cap_s is not None else 2),
            cap_s=profile.wave_cap_s,
            wait_s=settings.batch_wait_timeout_s,
        )
        self._kept = KeptDurations(ledger.output_root, self._scheduler.durations, clock)
        self._watchdog = Watchdog(
            engine,
            clock,
            stall_timeout_s=settings.stall_timeout_s,
            on_step=self._on_step,
            on_recovered=lambda: self._dispatcher.wake(),
        )
        service = Service(
            backend=profile.backend,
            framework_revision=profile.revision,
            source_revision=source_revision,
            guardrails=settings.guardrails,
            max_batch_size=settings.max_batch_size,
        )
        self._completion = Completion(ledger, self._writer, stager, service)
        self._dispatcher = Dispatcher(
            engine=engine,
            profile=profile,
            ledger=ledger,
            writer=self._writer,
            scheduler=self._scheduler,
            stager=stager,
            watchdog=self._watchdog,
            delivery=self._delivery,
            clock=clock,
            on_ended=self._completion.close,
            wave_limit=wave_limit,
            window_s=settings.batch_wait_timeout_s,
            gate=text_gate(settings, guard, observer),
        )
        inner = (self._scheduler, self._dispatcher, self._writer, self._completion)
        self._batches = Batches(settings, profile, engine, ledger, stager, clock, *inner)
        self._policy = policy = RetentionPolicy(settings.retention_hours * 3600.0, settings.retention_bytes)
        self._janitor = Janitor(ledger, clock, policy, self._batches.turn)
        self._tasks: list[asyncio.Task[None]] = []
        self.failure: ServiceFailure | None = None

    # ---- life

    async def start(self) -> None:
        """Open the ledger, settle what an earlier process left, and begin to work once the engine answers.

        Raises:
            StartRefused: another process uses the output root, or it can't be written.
        """
        batches = await self._ledger.open(partial(to_expire, policy=self._policy))
        for batch in batches:
            self._completion.expect(batch.request_id)
        work = (self._begin(batches), self._watchdog.run(), self._janitor.run(), self._kept.run())
        self._tasks = [asyncio.create_task(coroutine) for coroutine in work]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """None of these tasks ends by itself: whoever serves us must learn of it and start again."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("coordinator_task_broke", exc_info=error)
            self.failure = ServiceFailure(f"the coordinator broke ({type(error).__name__})", code="coordinator_failed")

    async def ready(self) -> None:
        """Returns once batches are accepted."""
        await self._batches.ready.wait()

    async def drain(self, timeout_s: float) -> None:
        """Take no more batches; give running samples so long to finish; queued ones of blocking callers end
        `interrupted`, those of asynchronous batches wait for the next start."""
        self._batches.draining = True
        self._dispatcher.hold()
        for batch in self._ledger.live_batches():
            if batch.detached:
                await self._dispatcher.put_back(batch.request_id)
            else:
                await self._dispatcher.withdraw(batch.request_id, SampleCode.INTERRUPTED, "the service shut down")
        await self._dispatcher.landed(timeout_s)
        for flight in self._watchdog.flights:
            flight.abort(SampleError(SampleCode.INTERRUPTED, "the service shut down while this sample was running"))
        # Only a disk that can't be written keeps a landing from its end, and that must not keep us from ours.
        await self._dispatcher.landed(LANDING_S)
        self._completion.give_up(Draining("the service shut down; the batch goes on after its next start"))

    async def close(self) -> None:
        """Stop at once. What still runs is found interrupted by the next start."""
        self._completion.give_up(Draining("the service shut down"))
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._dispatcher.close()
        await self._kept.save()
        await self._delivery.close()
        await self._ledger.close()

    async def _begin(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            await self._completion.close(batch.request_id)
        await self._kept.open(await self._batches.learn_engine())
        for batch in batches:
            if self._ledger.live(batch.request_id) is not None:
                await self._batches.resume(batch)
        self._batches.ready.set()
        await self._dispatcher.run()

    # ---- submitting

    async def submit(self, request: BatchRequest, *, tenant: str, detached: bool = False) -> BatchView:
        """Accept a batch, or find the one that this id and body already are. Durable when it returns.

        The same body again reruns the samples of an ended batch that may be retried, and only those.

        Args:
            detached: asked for asynchronously: the batch then ends only by itself or by `cancel`.

        Raises:
            InputError: the request is wrong; `errors` are all findings.
            Conflict: `request_id_conflict` (other body), `request_id_taken` (another tenant's, or files that the ledger
                doesn't know), `request_id_expired`, `request_id_damaged`.
            LimitExceeded, DeadlineUnreachable, QueueFull, NotReady (`not_ready`, `disk_full`), Draining.
        """
        return await self._view(await self._batches.submit(request, tenant=tenant, detached=detached))

    async def wait_ended(self, request_id: str, *, tenant: str) -> None:
        """Until the batch ended. Raises NotFound, Draining (the service stops first), ServiceFailure."""
        self._known(request_id, tenant)
        await self._completion.wait(request_id)

    async def cancel(self, request_id: str, *, tenant: str) -> BatchView:
        """Queued samples never start; running ones are told to stop, and are `finishing` until they do."""
        self._known(request_id, tenant)
        async with self._batches.turn(request_id):
            batch = self._ledger.live(request_id)
            if batch is not None and batch.cancelled_at is None:
                await self._writer.write(request_id, {"kind": "cancel", "at": self._clock.now()})
                await self._dispatcher.withdraw(request_id, SampleCode.CANCELLED, "cancelled before it started")
        keys = self._dispatcher.running_keys(request_id)
        if keys:
            with suppress(Exception):  # an engine that can't stop finishes, and the view says so
                async with asyncio.timeout(CANCEL_S):
                    await self._engine.cancel(keys)
        return await self.view(request_id, tenant=tenant)

    async def abandon(self, request_id: str, *, tenant: str) -> None:
        """The last blocking caller is gone: queued samples are cancelled, running ones finish and stay
        (docs/contract.md 2.2). A batch that was asked for asynchronously goes on."""
        summary = self._ledger.find(request_id)
        if summary is not None and summary.tenant == tenant:
            await self._batches.abandon(request_id)

    async def expire(self, request_id: str, *, tenant: str) -> bool:
        """Expire an ended batch now: its files go, its id stays taken. False, and nothing done, while it has not
        ended. Raises NotFound."""
        self._known(request_id, tenant)
        async with self._batches.turn(request_id):
            if ended := self._ledger.live(request_id) is None:
                await self._ledger.expire(request_id)
        return ended

    # ---- looking

    async def request(self, request_id: str, *, tenant: str) -> dict[str, Any]:
        """The body as accepted: samples, model, request_id. Raises NotFound, ServiceFailure."""
        if self._known(request_id, tenant).state is BatchState.EXPIRED:
            raise NotFound(f"batch {request_id!r} expired", code="batch_expired")
        return await self._ledger.request(request_id)

    async def view(self, request_id: str, *, tenant: str) -> BatchView:
        summary = self._known(request_id, tenant)
        if summary.state is BatchState.EXPIRED:
            return summary_view(summary, self._settings.model)
        return await self._view(await self._ledger.load(request_id))

    async def list(self, *, tenant: str, limit: int = 50, after: str | None = None) -> list[BatchView]:
        """The tenant's batches, newest first, without their samples; those after `after` when it is given."""
        last = None if after is None else self._known(after, tenant)
        mine = await self._ledger.listed(tenant, max(1, min(limit, MAX_LISTED)), last)
        return [summary_view(summary, self._settings.model) for summary in mine]

    async def response(self, request_id: str, *, tenant: str) -> StoredResponse:
        """The response, the same bytes every time. Raises Conflict (`batch_not_ended`), NotFound."""
        summary, live = self._known(request_id, tenant), self._ledger.live(request_id)
        if live is not None and live.ended_at is None:  # else its response lies there, and its summary is on the way
            raise Conflict(
                f"batch {request_id!r} has not ended",
                code="batch_not_ended",
                remedy="follow its events, or ask again later",
                retry_after_s=5.0,
            )
        if summary.state is BatchState.EXPIRED:
            raise NotFound(f"batch {request_id!r} expired", code="batch_expired")
        return await self._ledger.response(request_id)

    def events(self, request_id: str, *, tenant: str, last_event_id: int = 0) -> AsyncIterator[BatchEvent]:
        """What happened after event `last_event_id`, then what happens, until the batch ended. Raises NotFound."""
        return self._events(self._known(request_id, tenant), last_event_id)

    async def _events(self, summary: Summary, last: int) -> AsyncIterator[BatchEvent]:
        request_id = summary.request_id
        if summary.expired_at is not None:
            at = instant(summary.expired_at)
            yield BatchEvent(id=last + 1, type="end", state=BatchState.EXPIRED, at=at)
            return
        read = partial(self._ledger.events, request_id)
        batch = self._ledger.live(request_id)
        if batch is not None:
            async for event in self._hub.follow(request_id, at=batch.seq, after=last, replay=read):
                yield event
            return
        while page := await read(last):
            for event in page:
                yield event
            last = page[-1].id

    async def artifact(self, path: str, *, tenant: str) -> ArtifactFile:
        """A file that the tenant's ledger declares, by its path relative to the output root. Raises NotFound."""
        return await declared_artifact(self._ledger, path, tenant)

    def stats(self) -> QueueStats:
        now = self._clock.monotonic()
        last = self._scheduler.last_wave_at
        return QueueStats(
            depth=self._scheduler.depth,
            oldest_age_s=self._scheduler.oldest_age(now),
            running=len(self._dispatcher.running),
            waves_started=self._scheduler.waves_started,
            last_wave_age_s=None if last is None else now - last,
            stalled=self._watchdog.stalled,
            ready=self._batches.ready.is_set(),
            disk_trouble=self._writer.trouble,
        )

    # ---- inside

    def _known(self, request_id: str, tenant: str) -> Summary:
        summary = self._ledger.find(request_id)
        if summary is None or summary.tenant != tenant:
            raise NotFound(f"no batch {request_id[:128]!r}")
        return summary

    async def _view(self, batch: Batch) -> BatchView:
        prefix = batch.request_id + "/"
        steps = {k.removeprefix(prefix): v for k, v in self._watchdog.steps.items() if k.startswith(prefix)}
        if batch.counts[SampleState.QUEUED] == len(batch.samples):  # there is nothing else to tell of them yet
            samples = [SampleDetail(sample.name, sample.seed) for sample in batch.samples]
        else:
            samples = await self._ledger.details(batch.request_id)
        if len(samples) > LARGE:  # a thousand samples take the loop's time for some 50 ms
            return await asyncio.to_thread(batch_view, batch, samples, steps)
        return batch_view(batch, samples, steps)

    def _on_step(self, key: str, step: int, total: int) -> None:
        if step >= total:
            self._dispatcher.wake()  # the engine has room for the next wave's steps
        request_id, _, name = key.partition("/")
        self._hub.progress(request_id, name, step, total, self._clock.now())
