"""Ledger: every batch that this output root knows, and the only way to change one.

The index lives on the event loop; the rows are touched by the database's thread, files by a pool of a few threads. So
neither a slow disk nor a busy hashing pool can hold up the loop or an acceptance. A change is committed first and
applied after: what is seen is on disk. In memory are the open batches (a name and a state for each sample) and a
summary of each that ended; everything else is read when it is asked for, a page at a time, and not kept.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from cosmos3_serve.contract.views import BatchEvent, BatchState
from cosmos3_serve.errors import Conflict, NotFound, NotReady, ServiceFailure
from cosmos3_serve.generator.ledger import changes, queries
from cosmos3_serve.generator.ledger.age import LedgerClock
from cosmos3_serve.generator.ledger.batch import Batch, Record, SampleDetail, Summary, summarize
from cosmos3_serve.generator.ledger.database import Connection, Database
from cosmos3_serve.generator.ledger.files import DATABASE, PRIVATE, BatchFiles, RootLock, StoredResponse, disk_error
from cosmos3_serve.generator.ledger.packed import DamagedRow
from cosmos3_serve.generator.ledger.restart import Overdue, restart
from cosmos3_serve.generator.ledger.whole import whole
from cosmos3_serve.generator.ports import Clock

P = ParamSpec("P")
T = TypeVar("T")
Files = Mapping[str, bytes]  # content by name
Told = Callable[[Batch, int, Sequence[Record]], None]


class Ledger:
    """Args:
    output_root: see `files` for the layout.
    clock: for the times of restart records and ends.
    """

    def __init__(self, output_root: Path, clock: Clock) -> None:
        self.output_root = output_root.absolute()  # engines in other processes have another working directory
        self._clock = clock
        self._age = LedgerClock(clock)
        self._lock: RootLock | None = None
        self._database = Database(self.output_root / PRIVATE / DATABASE)
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="ledger-files")
        self._live: dict[str, Batch] = {}
        self._ended: dict[str, Summary] = {}
        self._tell: Told = lambda batch, first, records: None

    def subscribe(self, tell: Told) -> None:
        """`tell(batch, first, records)` is called on the event loop for all that is written to an open batch, in order;
        the records are numbered from `first`."""
        self._tell = tell

    # ---- start and stop

    async def open(self, overdue: Overdue = lambda ended, age: []) -> list[Batch]:
        """Take the root, read what is there, and settle what an earlier process left open.

        Samples that ran or staged are now failed `interrupted`; so are queued ones, except in batches submitted
        asynchronously, whose queued samples still wait. A batch that can't be read is kept as damaged. Where the disk
        is full, the files of batches that are `overdue` go first.

        Returns the batches that have not ended, oldest first.

        Raises:
            StartRefused: another process uses the root, or it can't be written, or the file can't be read.
        """
        self._lock = await self._io(RootLock, self.output_root)
        loop = asyncio.get_running_loop()

        def prepare(connection: Connection) -> tuple[list[Summary], list[Batch]]:
            return restart(connection, self.output_root, self._age, self._clock.now(), overdue)

        try:
            summaries, batches = await self._io(self._database.open, loop, prepare)
        except BaseException:
            self._lock.release()
            raise
        self._ended = {summary.request_id: summary for summary in summaries}
        self._live = {batch.request_id: batch for batch in batches}
        return batches

    async def close(self) -> None:
        await asyncio.to_thread(self._database.close)
        await asyncio.to_thread(self._pool.shutdown)
        if self._lock is not None:
            self._lock.release()

    # ---- reading

    def find(self, request_id: str) -> Summary | None:
        """What is known of an id without touching the disk."""
        batch = self._live.get(request_id)
        return summarize(batch, 0) if batch else self._ended.get(request_id)

    def live(self, request_id: str) -> Batch | None:
        return self._live.get(request_id)

    def live_batches(self) -> list[Batch]:
        return list(self._live.values())

    def ended(self) -> list[Summary]:
        """Summaries, in the order in which the batches ended."""
        return list(self._ended.values())

    def age(self) -> float:
        """The ledger's own clock, which `Summary.age_at` is a reading of."""
        return self._age.now()

    async def listed(self, tenant: str, limit: int, after: Summary | None) -> list[Summary]:
        """The tenant's batches, newest first: at most `limit`, those that follow `after` where it is given."""
        before = (after.created_at, after.request_id) if after else None
        names = await self._database.read(lambda c: queries.listed(c, tenant, limit, before))
        return [summary for name in names if (summary := self.find(name)) is not None]

    async def load(self, request_id: str) -> Batch:
        """The batch without its details: from memory while it is open, else read.

        Raises:
            NotFound: no such batch, or it expired.
            ServiceFailure: code `ledger_damaged`.
        """
        batch = self._live.get(request_id)
        if batch is not None:
            return batch
        self._readable(request_id)
        found = await self._read(request_id, lambda c: queries.batch(c, request_id))
        if found is None:
            raise NotFound(f"no batch {request_id!r}")
        return self._live.get(request_id, found)  # reopened while we read

    async def pages(self, request_id: str, *, results: bool) -> AsyncIterator[list[SampleDetail]]:
        """The samples with their details, in order, a page at a time; `results` asks for what the response needs too.

        Raises as `load` does.
        """
        self._readable(request_id)
        start = 0
        while True:
            work = partial(queries.details, request_id=request_id, start=start, results=results)
            rows = await self._read(request_id, work)
            if not rows:
                return
            yield await self._decode(request_id, rows, start)
            start += len(rows)

    async def details(self, request_id: str, *, results: bool = False) -> list[SampleDetail]:
        """`pages` in one list."""
        return [sample async for page in self.pages(request_id, results=results) for sample in page]

    async def detail(self, request_id: str, name: str) -> SampleDetail | None:
        """One sample by its name. Raises as `load` does."""
        self._readable(request_id)
        row = await self._read(request_id, lambda c: queries.detail_of(c, request_id, name))
        return None if row is None else (await self._decode(request_id, [row], row[0]))[0]

    async def events(self, request_id: str, after: int) -> list[BatchEvent]:
        """A page of the batch's events, numbered above `after`; empty once there are no more."""
        return await self._read(request_id, lambda c: queries.events(c, request_id, after))

    async def request(self, request_id: str) -> dict[str, Any]:
        """The body as accepted: samples, model, request_id."""
        try:
            return await self._io(self._files(request_id).request)
        except (OSError, ValueError):
            raise damaged(request_id) from None

    async def response(self, request_id: str) -> StoredResponse:
        """The stored response, byte for byte."""
        try:
            return await self._io(self._files(request_id).response)
        except OSError:
            raise damaged(request_id) from None

    # ---- writing

    async def accept(
        self, accepted: Mapping[str, Any], request: Mapping[str, Any], uploads: Files | None = None
    ) -> Batch:
        """Make a batch durable, with the files that came with it. Raises Conflict or NotReady (`disk_full`), and then
        nothing was accepted."""
        return await whole(self._accept(accepted, request, uploads or {}))

    async def _accept(self, accepted: Mapping[str, Any], request: Mapping[str, Any], uploads: Files) -> Batch:
        request_id = accepted["request_id"]
        files = self._files(request_id)
        batch = await self._io(Batch.of, accepted)

        def enter(_: None) -> None:
            self._live[request_id] = batch

        try:
            await self._io(lambda: files.create(json.dumps(request).encode(), uploads))
            await self._database.write(lambda c: changes.accept(c, accepted), enter)
        except Conflict:
            raise
        except BaseException as error:
            # Without its request a batch does not exist: also where a failed commit turns up after a crash.
            await self._io(files.remove_home)
            if isinstance(error, OSError):
                raise disk_error(error) from None
            raise
        return batch

    async def write(self, request_id: str, *records: Record) -> bool:
        """Append records to a batch and apply them; False, and nothing written, where it is not open (any more).

        Raises:
            NotReady: the disk is full or failing; nothing was written or applied.
            ValueError, TypeError: a record that is no JSON; nothing was written or applied.
        """

        def applied(written: bool) -> None:
            if written:
                self._apply(request_id, records)

        return await self._database.write(lambda c: changes.append(c, request_id, records), applied)

    async def end(self, request_id: str, response: Sequence[bytes]) -> Summary:
        """Store the response, given in pieces, and close the batch. Raises NotReady; the batch then stays open."""
        return await whole(self._end(request_id, response))

    async def _end(self, request_id: str, response: Sequence[bytes]) -> Summary:
        files, batch = self._files(request_id), self._live[request_id]
        try:
            await self._io(files.write_response, response)
        except OSError as error:
            raise disk_error(error) from None
        size = await self._io(files.usage)
        at, age, state = self._clock.now(), self._age.now(), batch.outcome

        def work(connection: Connection) -> bool:
            changes.tick(connection, age, at)
            return changes.end(connection, request_id, state, at=at, age=age, size=size)

        def applied(written: bool) -> None:
            if written:
                self._apply(request_id, [{"kind": "ended", "state": state.value, "at": at}])
                self._ended[request_id] = summarize(self._live.pop(request_id), size, age)

        await self._database.write(work, applied)
        return self._ended[request_id]

    async def reopen(self, request_id: str, indexes: Sequence[int], *, detached: bool) -> Batch:
        """Let samples of an ended batch run again; their earlier results are forgotten. Raises NotReady."""
        batch, at = await self.load(request_id), self._clock.now()

        def applied(written: bool) -> None:
            if not written:
                raise damaged(request_id)
            del self._ended[request_id]
            batch.detached = batch.detached or detached
            self._live[request_id] = batch
            self._apply(request_id, [{"kind": "reopened", "samples": list(indexes), "at": at}])

        await self._database.write(lambda c: changes.reopen(c, request_id, indexes, detached=detached, at=at), applied)
        return batch

    async def expire(self, request_id: str) -> None:
        """Remove an ended batch's files; its summary stays and says `expired`."""
        await whole(self._expire(request_id))

    async def _expire(self, request_id: str) -> None:
        at = self._clock.now()
        self._ended[request_id] = replace(
            self._ended[request_id], expired_at=at, state=BatchState.EXPIRED, bytes=0, damage=None
        )
        remembered = False
        # A full disk must not keep us from freeing space: then its files go first, and the row after them.
        with suppress(NotReady):
            await self._database.write(lambda c: changes.expire(c, request_id, at))
            remembered = True
        await self._io(self._files(request_id).remove_all)
        if not remembered:
            with suppress(NotReady):  # else the next start finds an ended batch without files, to expire again
                await self._database.write(lambda c: changes.expire(c, request_id, at))

    async def forget(self, request_id: str) -> None:
        """Remove the last trace of an ended batch: its id is free again. Raises NotReady."""
        await self._io(self._files(request_id).remove_all)
        await self._database.write(
            lambda c: changes.forget(c, request_id), lambda _: self._ended.__delitem__(request_id)
        )

    async def tick(self) -> None:
        """Remember how old the ledger is. Raises NotReady."""
        age, now = self._age.now(), self._clock.now()
        await self._database.write(lambda c: changes.tick(c, age, now))

    # ---- inside

    def _files(self, request_id: str) -> BatchFiles:
        return BatchFiles(self.output_root, request_id)

    def _apply(self, request_id: str, records: Sequence[Record]) -> None:
        batch = self._live[request_id]
        first = batch.seq + 1
        for record in records:
            batch.apply(record)
        self._tell(batch, first, records)

    def _readable(self, request_id: str) -> None:
        if request_id in self._live:
            return
        summary = self._ended.get(request_id)
        if summary is None or summary.expired_at is not None:
            raise NotFound(f"no batch {request_id!r}")
        if summary.damage is not None:
            raise damaged(request_id)

    async def _read(self, request_id: str, work: Callable[[Connection], T]) -> T:
        try:
            return await self._database.read(work)
        except DamagedRow as error:
            raise self._damaged(request_id, error) from None

    async def _decode(self, request_id: str, rows: Sequence[queries.DetailRow], start: int) -> list[SampleDetail]:
        try:
            return await self._io(lambda: [queries.decoded(row, start + i) for i, row in enumerate(rows)])
        except DamagedRow as error:
            raise self._damaged(request_id, error) from None

    def _damaged(self, request_id: str, error: DamagedRow) -> ServiceFailure:
        summary = self._ended.get(request_id)
        if summary is not None:
            self._ended[request_id] = replace(summary, damage=str(error), state=BatchState.FAILED)
        return damaged(request_id)

    async def _io(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run in the ledger's threads for files."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, partial(function, *args, **kwargs))


def damaged(request_id: str) -> ServiceFailure:
    return ServiceFailure(
        f"the ledger of batch {request_id!r} is damaged",
        code="ledger_damaged",
        remedy="its artifacts may still be on the output root; submit again under another request_id",
    )
