"""Server-sent events: one batch's events as they come, a comment now and then while none do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cosmos3_serve.contract.views import BatchEvent

HEARTBEAT_S = 15.0
RETRY_MS = 2000


class EventStream(Response):
    """Sends `events` until they end or the client leaves; closes the iterator in both cases.

    A write waits while the client does not read, so at most one event is held here; how far a slow reader may fall
    behind is for the iterator to decide.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[BatchEvent]) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        self._events = events
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b""})
            return
        stream = asyncio.create_task(self._stream(send))
        left = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({stream, left}, return_when=asyncio.FIRST_COMPLETED)
            if stream.done():
                stream.result()
        finally:
            for task in (stream, left):
                task.cancel()
            await asyncio.gather(stream, left, return_exceptions=True)

    async def _stream(self, send: Send) -> None:
        await _chunk(send, f"retry: {RETRY_MS}\n\n")
        pending: asyncio.Task[BatchEvent] | None = None
        try:
            while True:
                pending = pending or asyncio.ensure_future(anext(self._events))
                done, _ = await asyncio.wait({pending}, timeout=HEARTBEAT_S)
                if not done:
                    await _chunk(send, ": still here\n\n")
                    continue
                try:
                    event = pending.result()
                except StopAsyncIteration:
                    break
                finally:
                    pending = None
                await _chunk(send, f"id: {event.id}\nevent: {event.type}\ndata: {event.model_dump_json()}\n\n")
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if pending is not None:
                pending.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await pending
            close = getattr(self._events, "aclose", None)
            if close is not None:
                await close()


async def _chunk(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
