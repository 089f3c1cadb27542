"""Completion: when the last sample of a batch ended, its response is written and its waiters are told."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import structlog

from cosmos3_serve.errors import Cosmos3Error, ServiceFailure
from cosmos3_serve.generator.ledger.batch import Batch
from cosmos3_serve.generator.ledger.ledger import Ledger
from cosmos3_serve.generator.ledger.outcomes import Service, companies_of
from cosmos3_serve.generator.ledger.response import ResponseParts
from cosmos3_serve.generator.ledger.writer import LedgerWriter
from cosmos3_serve.generator.queue.staging import Stager

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Expected:
    """A batch that has not ended: who waits for it, and what they will hear instead of its end, if anything."""

    over: asyncio.Event = field(default_factory=asyncio.Event)
    failure: Cosmos3Error | None = None
    closing: bool = False
    size: int = 0


class Completion:
    def __init__(self, ledger: Ledger, writer: LedgerWriter, stager: Stager, service: Service) -> None:
        self._ledger = ledger
        self._writer = writer
        self._stager = stager
        self._service = service
        self._expected: dict[str, _Expected] = {}

    def expect(self, request_id: str, size: int = 0) -> None:
        """The batch lives. `size` is about what it holds in memory, bytes."""
        self._expected[request_id] = _Expected(size=size)

    @property
    def held_bytes(self) -> int:
        return sum(expected.size for expected in self._expected.values())

    async def wait(self, request_id: str) -> None:
        expected = self._expected.get(request_id)
        if expected is not None:
            await expected.over.wait()
            if expected.failure is not None:
                raise expected.failure

    def give_up(self, failure: Cosmos3Error) -> None:
        """Nobody waits any longer: the service stops."""
        for expected in self._expected.values():
            if not expected.over.is_set():
                expected.failure = failure
                expected.over.set()

    async def close(self, request_id: str) -> None:
        """Close the batch if all its samples ended; otherwise, and when it is being closed already, do nothing."""
        batch, expected = self._ledger.live(request_id), self._expected.get(request_id)
        if batch is None or expected is None or expected.closing or not batch.samples_ended:
            return
        expected.closing = True
        await self._stager.close(request_id)
        try:
            await self._writer.end(batch, await self._response(batch))
        except Exception as error:
            log.error("response_failed", exc_info=error)
            expected.failure = ServiceFailure("the response of the batch could not be made", code="response_failed")
        else:
            if self._expected.get(request_id) is expected:  # else it was reopened in this very moment
                del self._expected[request_id]
        expected.over.set()

    async def _response(self, batch: Batch) -> list[bytes]:
        request_id = batch.request_id
        try:
            requested = (await self._ledger.request(request_id))["samples"]
        except (ServiceFailure, KeyError):
            requested = [{} for _ in batch.samples]  # the request is unreadable; the results are not
        companies: dict[str, list[str]] = {}
        async for page in self._ledger.pages(request_id, results=False):
            for call, names in companies_of(page).items():
                companies.setdefault(call, []).extend(names)
        parts = ResponseParts(batch, self._service, companies)
        start = 0
        async for page in self._ledger.pages(request_id, results=True):
            await asyncio.to_thread(parts.add, page, requested[start : start + len(page)])
            start += len(page)
        return list(parts.chunks())
