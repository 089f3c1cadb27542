"""LedgerWriter: tells every change of a batch to who watches and who counts, and waits for a disk that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from cosmos3_serve.contract.views import BatchEvent
from cosmos3_serve.errors import Cosmos3Error, NotReady
from cosmos3_serve.generator.ledger.batch import Batch, Record, Summary
from cosmos3_serve.generator.ledger.events import EventHub, event_of
from cosmos3_serve.generator.ledger.files import disk_error
from cosmos3_serve.generator.ledger.ledger import Ledger
from cosmos3_serve.generator.ports import Clock, Observer

log = structlog.get_logger(__name__)
DISK_RETRY_S = 5.0


class LedgerWriter:
    """`trouble` says why the ledger can't be written just now, for readiness; None when all is well."""

    def __init__(self, ledger: Ledger, hub: EventHub, clock: Clock, observer: Observer) -> None:
        self._ledger = ledger
        self._hub = hub
        self._clock = clock
        self._observer = observer
        self.trouble: str | None = None
        ledger.subscribe(self._tell)

    def queued(self, samples: int) -> None:
        """Samples were queued by an acceptance or a reopening, which are one record for all."""
        for _ in range(samples):
            self._observer.sample_state("queued")

    async def write(self, request_id: str, *records: Record) -> None:
        """Does nothing where the batch is not open. Raises NotReady when the disk won't; then nothing changed."""
        await self._ledger.write(request_id, *records)

    async def insist(self, request_id: str, *records: Record) -> None:
        """As `write`, but wait for the disk: what a sample came to must not be lost while the service lives. If it
        dies first, a restart finds the sample running and calls it interrupted, which is then the truth."""
        while True:
            try:
                await self.write(request_id, *records)
            except NotReady as error:
                await self._wait(error)
            else:
                self.trouble = None
                return

    async def until_written(self, work: Callable[[], None]) -> None:
        """Run `work` in a thread, again until the disk takes it: a full output root is no verdict on a sample."""
        while True:
            try:
                await asyncio.to_thread(work)
            except OSError as error:
                await self._wait(disk_error(error))
            else:
                self.trouble = None
                return

    async def end(self, batch: Batch, response: Sequence[bytes]) -> Summary:
        """Close a batch, waiting for the disk if need be."""
        while True:
            try:
                summary = await self._ledger.end(batch.request_id, response)
            except NotReady as error:
                await self._wait(error)
            else:
                self.trouble = None
                return summary

    def _tell(self, batch: Batch, first: int, records: Sequence[Record]) -> None:
        events: list[BatchEvent] = []
        for number, record in enumerate(records, start=first):
            event = event_of(record, number, batch)
            if event is not None:
                events.append(event)
            if event is not None and event.sample is not None and event.state is not None:
                self._observer.sample_state(event.state)
        self._hub.publish(batch.request_id, events)

    async def _wait(self, error: Cosmos3Error) -> None:
        self.trouble = error.detail
        log.error("ledger_not_writable", code=error.stable_code)
        await self._clock.sleep(DISK_RETRY_S)
