"""Batches that a service keeps: list, look, follow, cancel (`cosmos3 batch …`).

A service without a ledger (the baseline's) answers 404 without a code; that is told as `no_ledger`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import httpx
from pydantic import ValidationError

from cosmos3_serve.client import load, problem
from cosmos3_serve.client.deadline import Deadline
from cosmos3_serve.client.events import parse_events
from cosmos3_serve.client.http import MIB, Answer, Service
from cosmos3_serve.contract.views import BatchEvent, BatchState, BatchView
from cosmos3_serve.errors import ContractViolation, NotFound
from cosmos3_serve.retry import FIRST_CONTACT
from cosmos3_serve.settings import TOKEN_ENV

PAGE = 100
MAX_VIEW_BYTES = 256 * MIB
POLL_S = 1.0
SILENCE_S = 45.0  # heartbeats come every 15 s

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """Where the service is: `--endpoint` or its variable, and the variable that holds the token."""

    endpoint: str = ""
    token_env: str = TOKEN_ENV
    timeout_s: float = 60.0

    def ask(self, call: Callable[[BatchLedger], Awaitable[T]], environ: Mapping[str, str] | None = None) -> T:
        """Run `call` with a connection, in an event loop of its own.

        Raises:
            UsageError: endpoint or token missing or malformed.
            Cosmos3Error: as `Service.call`.
        """
        environ = os.environ if environ is None else environ
        address, token = load.endpoint_of(self.endpoint, environ), load.token_of(self.token_env, environ)

        async def run() -> T:
            async with Service(address, token, Deadline(self.timeout_s)) as service:
                return await call(BatchLedger(service))

        return asyncio.run(run())


class BatchLedger:
    """The batches of one tenant on one service. Every method raises what `Service.call` raises, NotFound for an id
    that is not this tenant's, and NotFound (code `no_ledger`) where the service keeps no batches."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def pages(self, page: int = PAGE) -> AsyncIterator[list[BatchView]]:
        """All batches, the newest first, a page at a time."""
        after: str | None = None
        while True:
            query = {"limit": str(page)} | ({"after": after} if after else {})
            body = problem.parse((await self._get(f"/v1/batches?{urlencode(query)}")).body)
            rows = body.get("batches")
            if not isinstance(rows, list):
                raise ContractViolation("the service's list of batches is not a list")
            yield [_view(row) for row in rows]
            following = body.get("next")
            if not isinstance(following, str) or following == after:
                return
            after = following

    async def view(self, request_id: str) -> BatchView:
        return _view(problem.parse((await self._get(_path(request_id))).body))

    async def cancel(self, request_id: str) -> BatchView:
        """Queued samples end at once, running ones at their next step where the engine can stop them. Idempotent."""
        return _view(problem.parse((await self._call("DELETE", _path(request_id))).body))

    async def wait(self, request_id: str) -> BatchView:
        """The view of the ended batch.

        Raises:
            Incomplete: code `deadline_exceeded`.
        """
        while not (view := await self.view(request_id)).state.ended:
            await self._service.pause(POLL_S, f"waiting for batch {request_id}", f"says {view.state.value}")
        return view

    async def events(self, request_id: str, *, follow: bool = True) -> AsyncIterator[BatchEvent]:
        """What happened, in order, each event once; a cut stream goes on after the last event.

        Args:
            follow: until the batch ends; else until nothing has come for a second.
        """
        last = 0
        while True:
            headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": str(last)} if last else {})
            silence_s = SILENCE_S if follow else POLL_S
            path = f"{_path(request_id)}/events"
            try:
                async with self._service.stream(path, headers=headers, read_s=silence_s) as answer:
                    if answer.status_code != 200:
                        body = await answer.aread()
                        raise _failure(Answer(answer.status_code, answer.headers, body))
                    async for message in parse_events(answer.aiter_raw()):
                        event = message.batch_event()
                        if event.id > last:
                            last = event.id
                            yield event
                        if event.type == "end":
                            return
            except httpx.TransportError as error:
                if not follow and isinstance(error, httpx.ReadTimeout):
                    return
            # The view tells whether there is more to come, with the retries of any other call.
            if (await self.view(request_id)).state is BatchState.EXPIRED:
                return
            await self._service.pause(POLL_S, f"following batch {request_id}", "cut the stream of events")

    async def _get(self, path: str) -> Answer:
        return await self._call("GET", path)

    async def _call(self, method: str, path: str) -> Answer:
        answer = await self._service.call(method, path, retry=FIRST_CONTACT, max_bytes=MAX_VIEW_BYTES)
        if not answer.ok:
            raise _failure(answer)
        return answer


def _failure(answer: Answer) -> Exception:
    if answer.status in (404, 405) and not problem.parse(answer.body).get("code"):
        return NotFound(
            "this service keeps no batches", remedy="a baseline service answers when a batch is done", code="no_ledger"
        )
    return answer.failure()


def _path(request_id: str) -> str:
    return f"/v1/batches/{quote(request_id, safe='')}"


def _view(row: Any) -> BatchView:
    try:
        return BatchView.model_validate(row)
    except ValidationError as error:
        raise ContractViolation(f"the view of a batch is malformed: {error.error_count()} fields") from None
