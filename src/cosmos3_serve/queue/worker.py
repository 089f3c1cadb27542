"""One worker of a queue: takes leases, sends parts to services, records how they end, and publishes the index last.

Any number of workers may run on any number of machines. What one of them loses at any point (its process, its lease,
its service) another one, or the same one later, continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from cosmos3_serve.errors import Cosmos3Error, Incomplete, IntegrityError, StorageFailure
from cosmos3_serve.publication.layout import MAX_RECORD_BYTES, PROVENANCE
from cosmos3_serve.queue.attempts import PATIENCE_S, Meaning, meaning_of
from cosmos3_serve.queue.board import Board, Figures
from cosmos3_serve.queue.database import QueueDatabase
from cosmos3_serve.queue.endpoints import Endpoint, Fleet
from cosmos3_serve.queue.index import publish_index
from cosmos3_serve.queue.leases import Held, Leases
from cosmos3_serve.queue.place import QueuePlace
from cosmos3_serve.queue.progress import QueueProgress
from cosmos3_serve.queue.records import Index, PartResult, PartStatus, Plan, PlannedPart, Wanted, sha256_of
from cosmos3_serve.queue.results import Results
from cosmos3_serve.queue.work import Runner, Task
from cosmos3_serve.storage.files import in_thread

LOOK_S = 1.0  # for what people want, and for figures
REFRESH_S = 10.0  # for what other workers recorded
BUSY_S = 5.0  # a part that somebody else has
AGAIN_S = (1.0, 30.0)
CANCEL_S = 20.0

T = TypeVar("T")


class Stop(Enum):
    """Why an attempt was stopped from outside."""

    LOST = "the lease was lost"
    DOWN = "the service is away"
    CANCELLED = "the queue was cancelled"
    LEAVING = "the worker ends"


@dataclass(eq=False)
class Attempt:
    """A running part."""

    part: PlannedPart
    held: Held
    endpoint: Endpoint
    began: float = 0.0
    task: asyncio.Task[PartResult] | None = None
    stopped: Stop | None = None

    def stop(self, why: Stop) -> None:
        if self.stopped is None and self.task is not None and not self.task.done():
            self.stopped = why
            self.task.cancel()


@dataclass
class Worker:
    """`run` once. `attempts` bounds the counted attempts at a part; `patience_s` how long nothing may happen."""

    place: QueuePlace
    plan: Plan
    database: QueueDatabase
    leases: Leases
    fleet: Fleet
    runner: Runner
    progress: QueueProgress
    attempts: int = 2
    patience_s: float = PATIENCE_S
    resume_command: str = "cosmos3 queue resume"
    board: Board = field(init=False)

    def __post_init__(self) -> None:
        self.board = Board(self.plan, self.leases.clock)
        self._results = Results(self.place, self.database, self.board)
        self._wanted = Wanted.RUNNING
        self._running: dict[str, tuple[Attempt, asyncio.Task[None]]] = {}
        self._fatal: BaseException | None = None
        self._worked_at, self._why = self.leases.clock(), ""
        self.fleet.on_down = self._down

    async def run(self) -> Index:
        """Work until every part has ended, then publish the index, or find it published.

        Raises:
            Incomplete: code `queue_cancelled`; code `queue_stalled`: nothing could be done for too long.
            Cosmos3Error: no part can be done from here.
            IntegrityError: a published part is no longer what was recorded.
        """
        if (index := await self.place.index()) is not None:
            return index
        await self._results.load()
        self._tell()
        self._wanted = (await self.place.control()).wanted
        helpers = [asyncio.create_task(work) for work in (self._look(), self._refresh(), self.fleet.watch())]
        try:
            while not self.board.all_ended:
                self._raise_fatal(helpers)
                if self._wanted is Wanted.RUNNING:
                    await self._fill()
                tasks = [task for _, task in self._running.values()]
                if tasks:
                    await asyncio.wait(tasks, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                elif not self.board.all_ended:
                    await asyncio.sleep(min(LOOK_S, self.leases.lease_s / 10))
                for name, (_, task) in list(self._running.items()):
                    if task.done():
                        del self._running[name]
                        task.result()  # a fault of ours
            return await publish_index(self.place, self.plan, self.board.results)
        finally:
            await self._leave(helpers)

    # ---- beside the parts --------------------------------------------------------------------------------------------

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            with suppress(StorageFailure):
                await self._results.fetch()

    async def _look(self) -> None:
        """What people want, and the figures that they see."""
        while True:
            before = self._wanted
            with suppress(StorageFailure):
                self._wanted = (await self.place.control()).wanted
            if self._wanted is not before:
                self.progress.notice(f"the queue is {self._wanted}")
            if self._wanted is Wanted.CANCELLED:
                for attempt, _ in self._running.values():
                    attempt.stop(Stop.CANCELLED)
            rate = self._tell().rate
            await in_thread(self.database.progress, dict(self.board.running), rate)
            await asyncio.sleep(LOOK_S)

    def _tell(self) -> Figures:
        figures = self.board.figures()
        self.progress.figures(figures)
        return figures

    def _raise_fatal(self, helpers: list[asyncio.Task[None]]) -> None:
        for helper in helpers:
            if helper.done():
                helper.result()
        if self._fatal is not None:
            raise self._fatal
        if self._wanted is Wanted.CANCELLED and not self._running:
            raise Incomplete(
                f"the queue was cancelled with {len(self.board.results)} of {len(self.plan.parts)} parts ended",
                remedy=f"continue it with: {self.resume_command}",
                code="queue_cancelled",
            )
        if not self.fleet.usable:
            raise next(e.refused for e in self.fleet.endpoints if e.refused is not None)
        now = self.leases.clock()
        at_work = any(now - attempt.began > BUSY_S for attempt, _ in self._running.values())
        if at_work or self._wanted is not Wanted.RUNNING:
            self._worked_at = now
        elif now - self._worked_at > self.patience_s:
            raise Incomplete(
                f"no part could be worked on for {self.patience_s:g} s: {self._why}",
                remedy=f"when that is over, continue with: {self.resume_command}",
                code="queue_stalled",
            )

    async def _leave(self, helpers: list[asyncio.Task[None]]) -> None:
        for helper in helpers:
            helper.cancel()
        for attempt, _ in self._running.values():
            attempt.stop(Stop.LEAVING)
        await asyncio.gather(*helpers, *(task for _, task in self._running.values()), return_exceptions=True)

    def _down(self, endpoint: Endpoint) -> None:
        self.progress.notice(f"{endpoint.address} does not answer; its parts go to other services")
        for attempt, _ in self._running.values():
            if attempt.endpoint is endpoint:
                attempt.stop(Stop.DOWN)

    # ---- parts -------------------------------------------------------------------------------------------------------

    async def _fill(self) -> None:
        """Begin as many parts as the services have room for."""
        for part in self.board.takeable():
            if self._wanted is not Wanted.RUNNING or self._fatal is not None:
                return
            endpoint = self.fleet.pick(self.board.endpoint.get(part.name, ""))
            if endpoint is None:
                return
            endpoint.running += 1  # holds its place while the lease is asked for
            held: Held | None = None
            try:
                taken = await self._storage(self.leases.take(part.name, endpoint.address))
                if taken is None:
                    self._worked_at = self.leases.clock()  # another worker has it
                    self.board.back(part.name, min(BUSY_S, self.leases.lease_s / 4))
                    continue
                held, before = taken
                if (result := await self._storage(self.place.result(part.name))) is not None:
                    await self._record(result)
                    await held.release()
                    continue
            except BaseException:
                if held is not None:
                    await held.release()
                raise
            finally:
                endpoint.running -= 1
            if before:
                self.board.known.add(part.name)
                if before != endpoint.address and (other := self.fleet.pick(before)) and other.address == before:
                    endpoint = other
            self._begin(part, held, endpoint)

    async def _storage(self, call: Awaitable[T]) -> T | None:
        """None where storage is away for now; the part is looked at again later."""
        try:
            return await call
        except StorageFailure as error:
            if not error.retryable:
                raise
            return None

    def _begin(self, part: PlannedPart, held: Held, endpoint: Endpoint) -> None:
        attempt = Attempt(part, held, endpoint, self.leases.clock())
        self.board.begin(part.name)
        self.board.endpoint[part.name] = endpoint.address
        endpoint.running += 1
        self._running[part.name] = (attempt, asyncio.create_task(self._work(attempt)))

    async def _work(self, attempt: Attempt) -> None:
        """One attempt, from the lease to a result or back into the queue."""
        part, held, endpoint = attempt.part, attempt.held, attempt.endpoint
        name = part.name
        await in_thread(self.database.begin, name, worker=held.lease.worker, endpoint=endpoint.address)
        task = self._task(part, endpoint)
        self.board.known.add(name)
        attempt.task = asyncio.create_task(self._published(task))
        keeper = asyncio.create_task(self._keep(attempt))
        try:
            try:
                await self._record(await attempt.task)
                self.fleet.worked(endpoint)
            except Cosmos3Error as error:
                await self._settle(attempt, task, error)
            except asyncio.CancelledError:
                if attempt.stopped is None:  # the worker itself is cancelled
                    attempt.stop(Stop.LEAVING)
                    raise
                await self._stopped(attempt, task)
        finally:
            keeper.cancel()
            endpoint.running -= 1
            self.board.running.pop(name, None)
            if attempt.stopped is not Stop.LOST:
                await held.release()

    def _task(self, part: PlannedPart, endpoint: Endpoint) -> Task:
        return Task(
            part=part,
            input_path=self.place.batch(self.plan, part),
            output_path=self.place.part(part.name),
            endpoint=endpoint.address,
            known=part.name in self.board.known,
            partial=part.name in self.board.partial,
        )

    async def _published(self, task: Task) -> PartResult:
        name = task.part.name

        def done(samples: int) -> None:
            if name in self.board.running:
                self.board.running[name] = samples

        result = await self.runner.run(task, done)
        found = await self.place.store.get_bytes(self.place.part_key(name, PROVENANCE), max_bytes=MAX_RECORD_BYTES)
        if found is None:
            raise IntegrityError(f"part {name} was published and its {PROVENANCE} is not there")
        return result.model_copy(update={"manifest_sha256": sha256_of(found[1])})

    async def _keep(self, attempt: Attempt) -> None:
        await attempt.held.keep()
        self.progress.notice(f"part {attempt.part.name}: the lease was lost; another worker goes on with it")
        attempt.stop(Stop.LOST)

    async def _record(self, result: PartResult) -> None:
        stored = await self._results.record(result)
        self._worked_at = self.leases.clock()
        if stored.status is not PartStatus.COMPLETED:
            failed = stored.samples - stored.succeeded
            self.progress.notice(f"part {stored.name} is {stored.status}: {failed} of {stored.samples} samples failed")

    async def _stopped(self, attempt: Attempt, task: Task) -> None:
        why = attempt.stopped or Stop.LEAVING
        await in_thread(self.database.stop, task.part.name, why=why.value, counted=False)
        if why is Stop.CANCELLED:
            with suppress(Cosmos3Error, TimeoutError):
                async with asyncio.timeout(CANCEL_S):
                    await self.runner.cancel(task)
        elif why is Stop.DOWN:
            self.fleet.failed(attempt.endpoint, Incomplete("it does not answer"))
        self.board.back(task.part.name, BUSY_S if why is Stop.LOST else 0.0)

    async def _settle(self, attempt: Attempt, task: Task, error: Cosmos3Error) -> None:
        """As `_failed`; storage that is away even for that leaves the part in the queue."""
        try:
            await self._failed(attempt, task, error)
        except Cosmos3Error as failure:
            if not (isinstance(failure, StorageFailure) and failure.retryable):
                self._fatal = self._fatal or failure
            self.board.back(task.part.name, BUSY_S)

    async def _failed(self, attempt: Attempt, task: Task, error: Cosmos3Error) -> None:
        name, endpoint = task.part.name, attempt.endpoint
        count = self.board.attempts.get(name, 0) + 1
        meaning = meaning_of(error, attempts=count, most=self.attempts, partial=task.partial)
        counted = meaning in (Meaning.AGAIN, Meaning.PARTIAL)
        self._why = error.detail
        if counted:
            self.board.attempts[name] = count
        await in_thread(self.database.stop, name, why=f"{error.stable_code}: {error.detail}", counted=counted)
        wait = min(AGAIN_S[1], AGAIN_S[0] * 2 ** min(count - 1, 10))
        if meaning is Meaning.GIVE_UP:
            await self._record(await self.runner.give_up(task, error))
            return
        if meaning is Meaning.STOP:
            self._fatal = self._fatal or error
        elif meaning is Meaning.REFUSED:
            endpoint.refused = error
            self.progress.notice(f"{endpoint.address} is not used any more: {error.detail}")
        elif meaning is Meaning.ELSEWHERE:
            self.fleet.failed(endpoint, error)
            wait = 0.0
        elif meaning is Meaning.PARTIAL:
            self.board.partial.add(name)
            wait = 0.0
        elif meaning is Meaning.LATER:
            wait = BUSY_S
        self.progress.notice(f"part {name}: {error.detail}; next: {meaning.value}")
        self.board.back(name, wait)
