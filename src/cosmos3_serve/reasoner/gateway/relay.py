"""Relay: a replica's answer on its way to the client, whole or as events, without looking into it token by token."""

from __future__ import annotations

import json
from typing import Any

from starlette.types import Send

from cosmos3_serve.errors import Cosmos3Error
from cosmos3_serve.reasoner.gateway.event_stream import EventStream
from cosmos3_serve.reasoner.gateway.upstream import Lost, Reply
from cosmos3_serve.service.openai_errors import error_object
from cosmos3_serve.service.problems import Headers


class Relay:
    """The answer to one client.

    Args:
        headers: put on the answer; may still be filled until it begins.
        model: name for the event that carries an explanation.
        events: how a stream of this endpoint fails and ends.
        explanation: goes into the answer as `cosmos3`, None where nobody asked.
    """

    def __init__(self, send: Send, headers: Headers, model: str, events: EventStream) -> None:
        self._send, self._headers, self._model, self._events = send, headers, model, events
        self.explanation: dict[str, Any] | None = None
        self.begun = False

    async def whole(self, body: bytes) -> None:
        """One JSON answer."""
        if self.explanation is not None and body.rstrip().endswith(b"}"):
            body = body.rstrip()[:-1] + b',"cosmos3":' + json.dumps(self.explanation).encode() + b"}"
        self.begun = True
        length = (b"content-length", str(len(body)).encode())
        headers = [(b"content-type", b"application/json"), length, *self._headers]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def stream(self, first: bytes, reply: Reply) -> None:
        """Events, from the first bytes on to `[DONE]`.

        Raises:
            Lost, Silent: the stream broke; the client still waits for its end (`broken`).
        """
        self.begun = True
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await self._send({"type": "http.response.start", "status": 200, "headers": [*headers, *self._headers]})
        if self.explanation is not None:
            await self._piece(self._events.explanation(self._model, self.explanation))
        piece = first
        while piece:
            piece = self._events.cleaned(piece)
            await self._piece(piece)
            self._events.passed(piece)
            piece = await reply.next()
        if not self._events.ended:
            raise Lost  # the connection ended in order, the answer did not
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def broken(self, error: Cosmos3Error) -> None:
        """Too late for a status: say it as an event, and end."""
        await self._piece(b"\n\n" + self._events.error(error_object(error)))
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _piece(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
