"""Ledger: every batch that this output root knows, and the only way to change one.

The index lives on the event loop; files are touched in the ledger's own threads, so neither a slow disk nor a busy
hashing pool can hold up the loop or an acceptance. A change is written first and applied after: what is seen is on
disk. In memory are the batches that run, a summary of each that ended, and a few ended ones that were asked for.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from cosmos3_serve.contract.views import BatchState
from cosmos3_serve.errors import NotFound, ServiceFailure, StartRefused
from cosmos3_serve.generator.batch import Batch, Record, Summary
from cosmos3_serve.generator.batch_files import BatchFiles, RootLock, disk_error
from cosmos3_serve.generator.journal import Journal
from cosmos3_serve.generator.ports import Clock
from cosmos3_serve.generator.recovery import recover, summarize

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class _Live:
    """A batch that has not ended: its state, its journal, and the order in which changes reach both."""

    batch: Batch
    journal: Journal
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Ledger:
    """Args:
    output_root: see `batch_files` for the layout.
    clock: for the times of recovery records.
    details: ended batches kept in memory after they were asked for.
    """

    def __init__(self, output_root: Path, clock: Clock, *, details: int = 64) -> None:
        self.output_root = output_root.absolute()  # engines in other processes have another working directory
        self._clock = clock
        self._details_limit = details
        self._lock: RootLock | None = None
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="ledger")
        self._live: dict[str, _Live] = {}
        self._ended: OrderedDict[str, Summary] = OrderedDict()
        self._details: OrderedDict[str, Batch] = OrderedDict()

    # ---- start and stop

    async def open(self) -> list[Batch]:
        """Take the root, read what is there, and settle what an earlier process left open.

        Samples that ran or staged are now failed `interrupted`; so are queued ones, except in batches submitted
        asynchronously, whose queued samples still wait. A batch that can't be read is kept as damaged.

        Returns the batches that have not ended, oldest first.

        Raises:
            StartRefused: another process uses the root, or it can't be written.
        """
        self._lock = await self._io(RootLock, self.output_root)
        try:
            summaries, live = await self._io(recover, self.output_root, self._clock.now())
        except OSError as error:
            raise StartRefused(f"the ledger can't be settled: {disk_error(error).detail}") from None
        self._ended = OrderedDict((s.request_id, s) for s in sorted(summaries, key=lambda s: s.ended_at))
        self._live = {batch.request_id: _Live(batch, journal) for batch, journal in live}
        return sorted((batch for batch, _ in live), key=lambda batch: batch.created_at)

    async def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
        await asyncio.to_thread(self._pool.shutdown)

    # ---- reading

    def find(self, request_id: str) -> Summary | None:
        """What is known of an id without touching the disk."""
        entry = self._live.get(request_id)
        return summarize(entry.batch, 0) if entry else self._ended.get(request_id)

    def live(self, request_id: str) -> Batch | None:
        entry = self._live.get(request_id)
        return entry.batch if entry else None

    def live_batches(self) -> list[Batch]:
        return [entry.batch for entry in self._live.values()]

    def ended(self) -> list[Summary]:
        """Summaries, in the order in which the batches ended."""
        return list(self._ended.values())

    async def load(self, request_id: str) -> Batch:
        """The batch in full: from memory, else read again.

        Raises:
            NotFound: no such batch, or it expired.
            ServiceFailure: code `ledger_damaged`.
        """
        entry = self._live.get(request_id)
        if entry is not None:
            return entry.batch
        known = self._details.get(request_id)
        if known is not None:
            self._details.move_to_end(request_id)
            return known
        summary = self._ended.get(request_id)
        if summary is None or summary.expired_at is not None:
            raise NotFound(f"no batch {request_id!r}")
        if summary.damage is not None:
            raise damaged(request_id)
        read = await self._io(self._files(request_id).read)
        try:
            if read.damage is not None:
                raise ValueError(read.damage)
            batch = Batch.replay(read.records)
        except ValueError as error:
            if request_id in self._ended:
                self._ended[request_id] = replace(summary, damage=str(error), state=BatchState.FAILED)
            raise damaged(request_id) from None
        if request_id in self._live:  # reopened while we read
            return self._live[request_id].batch
        if request_id in self._ended:
            self._details[request_id] = batch
            while len(self._details) > self._details_limit:
                self._details.popitem(last=False)
        return batch

    async def records(self, request_id: str) -> list[Record]:
        """The journal's records as they are on disk."""
        return (await self._io(self._files(request_id).read)).records

    async def request(self, request_id: str) -> dict[str, Any]:
        """The body as accepted: samples, model, request_id."""
        try:
            return await self._io(self._files(request_id).request)
        except (OSError, ValueError):
            raise damaged(request_id) from None

    async def response(self, request_id: str) -> bytes:
        """The stored response, byte for byte."""
        try:
            return await self._io(self._files(request_id).response)
        except OSError:
            raise damaged(request_id) from None

    # ---- writing

    async def accept(self, accepted: Mapping[str, Any], request: Mapping[str, Any]) -> Batch:
        """Make a batch durable. Raises Conflict or NotReady (`disk_full`), and then nothing was accepted."""
        return await whole(self._accept(accepted, request))

    async def _accept(self, accepted: Mapping[str, Any], request: Mapping[str, Any]) -> Batch:
        files = self._files(accepted["request_id"])
        try:
            journal = await self._io(lambda: files.create(accepted, json.dumps(request).encode()))
        except OSError as error:
            raise disk_error(error) from None
        batch = Batch.replay([accepted])
        self._live[batch.request_id] = _Live(batch, journal)
        return batch

    async def write(self, request_id: str, *records: Record, sync: bool = True) -> int:
        """Append records to a batch that has not ended, then apply them; returns the number of the last.

        Raises:
            NotReady: the disk is full or failing; nothing was written or applied.
            ValueError, TypeError: a record that is no JSON; nothing was written or applied.
        """
        return await whole(self._write(self._live[request_id], records, sync))

    async def _write(self, entry: _Live, records: Sequence[Record], sync: bool) -> int:
        async with entry.turn:
            await self._append(entry, records, sync)
            return entry.batch.seq

    async def end(self, request_id: str, response: bytes) -> Summary:
        """Store the response and close the batch. Raises NotReady when the disk won't; the batch then stays open."""
        return await whole(self._end(request_id, response))

    async def _end(self, request_id: str, response: bytes) -> Summary:
        entry = self._live[request_id]
        files = self._files(request_id)
        async with entry.turn:
            try:
                await self._io(files.write_response, response)
                ended = {"kind": "ended", "state": entry.batch.outcome.value, "at": self._clock.now()}
                await self._append(entry, [ended], True)
                summary = summarize(entry.batch, await self._io(files.usage))
                await self._io(files.write_summary, summary)
            except OSError as error:
                raise disk_error(error) from None
            del self._live[request_id]
            self._ended[request_id] = summary
            return summary

    async def reopen(self, request_id: str, indexes: Sequence[int], *, detached: bool) -> Batch:
        """Let samples of an ended batch run again; their earlier results are forgotten. Raises NotReady."""
        return await whole(self._reopen(request_id, indexes, detached))

    async def _reopen(self, request_id: str, indexes: Sequence[int], detached: bool) -> Batch:
        batch = await self.load(request_id)
        files = self._files(request_id)
        read = await self._io(files.read)
        entry = _Live(batch, Journal.resume(files.journal_path, read))
        records: list[Record] = [{"kind": "reopened", "samples": list(indexes), "at": self._clock.now()}]
        if detached and not batch.detached:
            records.append({"kind": "detached"})
        try:
            await self._io(files.forget_summary)
        except OSError as error:
            raise disk_error(error) from None
        await self._append(entry, records, True)
        del self._ended[request_id]
        self._details.pop(request_id, None)
        self._live[request_id] = entry
        return batch

    async def expire(self, request_id: str) -> None:
        """Remove an ended batch's files; its summary stays and says `expired`."""
        await whole(self._expire(request_id))

    async def _expire(self, request_id: str) -> None:
        files = self._files(request_id)
        summary = replace(
            self._ended[request_id], expired_at=self._clock.now(), state=BatchState.EXPIRED, bytes=0, damage=None
        )
        # A full disk must not keep us from freeing space; then the next start finds an older story, to expire again.
        with suppress(OSError):
            await self._io(files.write_summary, summary)
        self._ended[request_id] = summary
        self._details.pop(request_id, None)
        await asyncio.to_thread(files.remove_content)

    async def forget(self, request_id: str) -> None:
        """Remove the last trace of an ended batch: its id is free again."""
        self._ended.pop(request_id, None)
        self._details.pop(request_id, None)
        await asyncio.to_thread(self._files(request_id).remove_all)

    # ---- inside

    def _files(self, request_id: str) -> BatchFiles:
        return BatchFiles(self.output_root, request_id)

    async def _append(self, entry: _Live, records: Sequence[Record], sync: bool) -> None:
        try:
            await self._io(partial(entry.journal.append, records, sync=sync))
        except OSError as error:
            raise disk_error(error) from None
        for record in records:
            entry.batch.apply(record)

    async def _io(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run in the ledger's threads."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, partial(function, *args, **kwargs))


async def whole(work: Coroutine[Any, Any, T]) -> T:
    """Finish `work` even if the caller is cancelled: disk and memory must not drift apart between two awaits."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # retrieved: the caller who would have seen it is gone
        raise


def damaged(request_id: str) -> ServiceFailure:
    return ServiceFailure(
        f"the ledger of batch {request_id!r} is damaged",
        code="ledger_damaged",
        remedy="its artifacts may still be on the output root; submit again under another request_id",
    )
