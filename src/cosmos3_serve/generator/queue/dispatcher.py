"""Dispatcher: moves samples from the queue through staging and the engine to their end. One task, woken by changes.

Whoever takes a sample out of `works` owns its end, so that a cancellation and a result that meet end it once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from cosmos3_serve.contract.profile import EngineProfile
from cosmos3_serve.contract.records import SampleState
from cosmos3_serve.errors import SampleCode
from cosmos3_serve.generator.engines.job import EngineJob, sample_key
from cosmos3_serve.generator.guardrails.gate import TextGate
from cosmos3_serve.generator.ledger.batch import Record, sample_failed, sample_state
from cosmos3_serve.generator.ledger.files import BatchFiles
from cosmos3_serve.generator.ledger.ledger import Ledger
from cosmos3_serve.generator.ledger.writer import LedgerWriter
from cosmos3_serve.generator.ports import Clock, EnginePort
from cosmos3_serve.generator.queue.admission import Admitted, Work
from cosmos3_serve.generator.queue.delivery import Delivery, job_of
from cosmos3_serve.generator.queue.prefetch import Key, Prefetch
from cosmos3_serve.generator.queue.runner import Flight, Outcome, WaveRunner
from cosmos3_serve.generator.queue.scheduler import Ticket, Wave, WaveScheduler
from cosmos3_serve.generator.queue.staging import Stager
from cosmos3_serve.generator.queue.watchdog import Watchdog

log = structlog.get_logger(__name__)


class Dispatcher:
    """Args:
    on_ended: told the request id whenever samples of it ended.
    wave_limit: samples in a full wave. Twice as many may have inputs on disk, or results to be hashed.
    window_s: how long the engine's own coalescing stays open for a batch that is not full.
    gate: checks texts before a sample may join a wave; None where guardrails are off.
    """

    def __init__(
        self,
        *,
        engine: EnginePort,
        profile: EngineProfile,
        ledger: Ledger,
        writer: LedgerWriter,
        scheduler: WaveScheduler,
        stager: Stager,
        watchdog: Watchdog,
        delivery: Delivery,
        clock: Clock,
        on_ended: Callable[[str], Awaitable[None]],
        wave_limit: int,
        window_s: float,
        gate: TextGate | None = None,
    ) -> None:
        self._runner = WaveRunner(engine, clock)
        self._profile = profile
        self._ledger = ledger
        self._writer = writer
        self._scheduler = scheduler
        self._stager = stager
        self._watchdog = watchdog
        self._delivery = delivery
        self._clock = clock
        self._on_ended = on_ended
        self._backlog = backlog = max(4, 2 * wave_limit)
        self._wave_limit = wave_limit
        self._window_s = window_s
        self._gate = gate
        self._wake = asyncio.Event()
        self._held = False
        self._alarm: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._prefetch = Prefetch(
            profile, writer, scheduler, stager, clock, backlog=backlog, gate=gate, end=self._end, wake=self._wake.set
        )
        self._departing = 0
        self._quiet_until = 0.0
        self._landings = 0
        self.works: dict[Key, Work] = {}
        self.running: dict[Key, str] = {}

    # ---- in and out of the queue

    def enqueue(self, request_id: str, admitted: Admitted) -> None:
        """Queue samples that were accepted; room was checked before."""
        now = self._clock.monotonic()
        self._stager.open(request_id, admitted.inputs)
        for work in admitted.work:
            work.queued_at = now
            self.works[work.key] = work
        tickets = admitted.tickets
        if self._gate is not None:  # none may start before its texts have passed
            tickets = [replace(ticket, ready=False) for ticket in tickets]
        self._scheduler.offer(tickets, now, force=True)
        self._wake.set()

    async def withdraw(self, request_id: str, code: SampleCode, message: str) -> None:
        """End the samples of a batch that have not reached the engine."""
        self._scheduler.withdraw(request_id)
        waiting = [key for key in self.works if key[0] == request_id and key not in self.running]
        taken = [self.works.pop(key) for key in waiting]
        for work in taken:
            await self._prefetch.stop(work.key)
        if taken:
            now = self._clock.now()
            await self._writer.insist(
                request_id, *[sample_failed(work.index, code, message, now) for work in taken]
            )  # fmt: skip
            for work in taken:
                await self._stager.release(request_id, work.index)
            await self._on_ended(request_id)
        self._wake.set()

    async def put_back(self, request_id: str) -> None:
        """Stop fetching for a batch that outlives this process, and leave its samples as queued."""
        self._scheduler.withdraw(request_id)
        fetching = [key for key in self._prefetch.fetching(request_id) if key in self.works]
        for key in fetching:
            await self._prefetch.stop(key)
        now = self._clock.now()
        if fetching:
            records = [sample_state(index, SampleState.QUEUED, now) for _, index in fetching]
            await self._writer.insist(request_id, *records)

    def running_keys(self, request_id: str) -> list[str]:
        """`sample_key` of the batch's samples that are with the engine, or whose results are being looked at."""
        return [sample_key(request_id, name) for (batch, _), name in self.running.items() if batch == request_id]

    # ---- the loop

    def wake(self) -> None:
        self._wake.set()

    def hold(self) -> None:
        """Start nothing more."""
        self._held = True

    async def landed(self, timeout_s: float) -> bool:
        """Wait until nothing that was started is still open, at most so long; whether it came to that."""
        timeout = asyncio.ensure_future(self._clock.sleep(timeout_s))
        try:
            while self._tasks and not timeout.done():
                await asyncio.wait([*self._tasks, timeout], return_when=asyncio.FIRST_COMPLETED)
            return not self._tasks
        finally:
            timeout.cancel()

    async def run(self) -> None:
        """Start what may start, for ever; ends only by cancellation."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                self._start_waves()
            except Exception as error:  # a fault in one decision must not end all deciding
                log.error("dispatcher_broke", exc_info=error)

    def _start_waves(self) -> None:
        if self._held:
            return
        self._prefetch.go(self.works)
        while not self._watchdog.stalled and self._landings < self._backlog:
            now = self._clock.monotonic()
            if now < self._quiet_until:
                self._wake_at(self._quiet_until, now)
                break
            denoising = self._departing > 0 or self._watchdog.denoising
            wave = self._scheduler.next_wave(now, denoising=denoising)
            if wave is None:
                self._wake_at(self._scheduler.retry_at, now)
                break
            works = [self.works[ticket.batch, ticket.index] for ticket in wave.tickets]
            self.running.update((work.key, work.name) for work in works)
            self._prefetch.left(work.key for work in works)
            if len(works) < self._wave_limit:
                # Until its window below has closed, another wave's samples would be coalesced into it.
                self._quiet_until = now + self._window_s
            self._departing += 1
            self._spawn(self._fly(wave, works))
            self._prefetch.go(self.works)

    def _wake_at(self, at: float | None, now: float) -> None:
        """Look again at that time; one alarm at a time is enough, it is set anew each time we look."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None if at is None else asyncio.create_task(self._ring(at - now))

    async def _ring(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._wake.set()

    async def close(self) -> None:
        self._wake_at(None, 0.0)
        await self._prefetch.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # ---- waves

    async def _fly(self, wave: Wave, works: list[Work]) -> None:
        flight = Flight(tuple(sample_key(work.request_id, work.name) for work in works))
        outcomes: list[Outcome] = []
        landings: list[asyncio.Task[None]] = []
        by_key = {sample_key(work.request_id, work.name): work for work in works}
        departing = 1
        try:
            await self._announce(works)
            await self._writer.until_written(lambda: self._make_room(works))
            jobs = [job_of(work, self._ledger.output_root) for work in works]
            for job in [job for job in jobs if self._unwanted(job)]:  # cancelled since it left the queue
                jobs.remove(job)
                work = by_key.pop(job.key)
                landings.append(self._spawn(self._end(work, self._cancelled(work))))
            started = self._clock.monotonic()
            self._watchdog.departed(flight)
            departing = 0
            self._departing -= 1
            async for outcome in self._runner.run(jobs, flight, unwanted=self._unwanted):
                self._watchdog.moved()
                outcomes.append(outcome)
                work = by_key.pop(outcome.job.key)
                landings.append(self._spawn(self._land(work, outcome, started)))
        except Exception as error:
            log.error("wave_broke", exc_info=error, samples=len(by_key))
            message = f"the service failed to run the wave ({type(error).__name__})"
            for work in by_key.values():
                failed = sample_failed(work.index, SampleCode.ENGINE_FAILED, message, self._clock.now())
                landings.append(self._spawn(self._end(work, failed)))
        finally:
            self._departing -= departing
            self._watchdog.landed(flight)
            hopeless = self._scheduler.finish(
                wave, self._clock.monotonic(), self._engine_seconds(outcomes, wave, flight)
            )
            self._wake.set()
        await self._give_up(hopeless)
        if landings:
            await asyncio.wait(landings)

    async def _announce(self, works: Iterable[Work]) -> None:
        """The samples run, and on disk too: if we die now, a restart must not take them for queued."""
        now = self._clock.now()
        groups: dict[str, list[Record]] = {}
        for work in works:
            groups.setdefault(work.request_id, []).append(sample_state(work.index, SampleState.RUNNING, now))
        for request_id, records in groups.items():
            batch = self._ledger.live(request_id)
            if batch is not None and batch.started_at is None:
                records.insert(0, {"kind": "started", "at": now})
            await self._writer.insist(request_id, *records)

    def _make_room(self, works: Iterable[Work]) -> None:
        """Clear what an earlier run of the sample left behind, and make its directory. Raises OSError."""
        for work in works:
            files = BatchFiles(self._ledger.output_root, work.request_id)
            files.remove_sample(work.name)
            Path(files.outputs / work.name).mkdir(parents=True)

    def _unwanted(self, job: EngineJob) -> bool:
        batch = self._ledger.live(job.request_id)
        return batch is None or batch.cancelled_at is not None

    async def _land(self, work: Work, outcome: Outcome, started: float) -> None:
        self._landings += 1
        try:
            record = await self._delivery.record(work, outcome, queue_s=started - work.queued_at)
            await self._end(work, record)
        finally:
            self._landings -= 1
            self._wake.set()

    async def _end(self, work: Work, record: Record) -> None:
        if self.works.pop(work.key, None) is None:
            return
        try:
            await self._writer.insist(work.request_id, record)
        except (ValueError, TypeError) as error:
            log.error("record_is_no_json", exc_info=error)
            message = "the result can't be recorded"
            record = sample_failed(work.index, SampleCode.OUTPUT_INVALID, message, self._clock.now())
            await self._writer.insist(work.request_id, record)
        self.running.pop(work.key, None)
        self._prefetch.left([work.key])
        await self._stager.release(work.request_id, work.index)
        await self._on_ended(work.request_id)

    async def _give_up(self, tickets: list[Ticket]) -> None:
        """Samples that a measurement just showed to be unable to finish under the cap."""
        for ticket in tickets:
            work = self.works.get((ticket.batch, ticket.index))
            if work is not None:  # else it was withdrawn meanwhile
                message = "a sample of this shape was measured to take longer than one wave may"
                failed = sample_failed(work.index, SampleCode.DEADLINE_EXCEEDED, message, self._clock.now())
                await self._end(work, failed)

    def _engine_seconds(self, outcomes: list[Outcome], wave: Wave, flight: Flight) -> float | None:
        """What the wave teaches about durations: a clean first attempt does, and one that ran into the cap."""
        cap = self._profile.wave_cap_s
        if flight.first_s is None:
            return None
        if len(outcomes) == len(wave.tickets) and all(outcome.clean for outcome in outcomes):
            told = [outcome.result.phases.get("inference", 0.0) for outcome in outcomes if outcome.result]
            return flight.first_s if cap is not None or max(told) <= 0 else max(told)
        return flight.first_s if cap is not None and flight.first_s >= cap else None

    def _cancelled(self, work: Work) -> Record:
        return sample_failed(work.index, SampleCode.CANCELLED, "cancelled before it started", self._clock.now())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("dispatcher_task_broke", exc_info=task.exception())
