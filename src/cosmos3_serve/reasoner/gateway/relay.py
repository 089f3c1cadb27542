"""Relay: a replica's answer on its way to the client, whole or as events, without looking into it token by token."""

from __future__ import annotations

import json
import time
from typing import Any

from starlette.types import Send

from cosmos3_serve.errors import Cosmos3Error
from cosmos3_serve.reasoner.gateway.openai_errors import error_event, error_object
from cosmos3_serve.reasoner.gateway.replica_errors import clean_event
from cosmos3_serve.reasoner.gateway.upstream import Lost, Reply
from cosmos3_serve.service.problems import Headers

_ERROR = b'data: {"error"'
_DONE = b"[DONE]"
_TAIL = 32


class Relay:
    """The answer to one client.

    Args:
        headers: put on the answer; may still be filled until it begins.
        model: name for the event that carries an explanation.
        explanation: goes into the answer as `cosmos3`, None where nobody asked.
    """

    def __init__(self, send: Send, headers: Headers, model: str, explanation: dict[str, Any] | None = None) -> None:
        self._send, self._headers, self._model, self.explanation = send, headers, model, explanation
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
            await self._piece(self._explanation_event())
        tail, piece = b"", first
        while piece:
            if _ERROR in piece:
                piece = _cleaned(piece)
            await self._piece(piece)
            tail = (tail + piece)[-_TAIL:]
            piece = await reply.next()
        if _DONE not in tail:
            raise Lost  # the connection ended in order, the answer did not
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def broken(self, error: Cosmos3Error) -> None:
        """Too late for a status: say it as an event, and end."""
        await self._piece(b"\n\n" + error_event(error_object(error)))
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _piece(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    def _explanation_event(self) -> bytes:
        """As the usage event is shaped: a chunk without choices, which clients must skip."""
        value = {
            "id": "chatcmpl-explain",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": self._model,
            "choices": [],
            "cosmos3": self.explanation,
        }
        return b"data: " + json.dumps(value).encode() + b"\n\n"


def _cleaned(piece: bytes) -> bytes:
    """Error events of the replica in our shape; everything else as it is."""
    events = piece.split(b"\n\n")
    return b"\n\n".join(
        clean_event(event).rstrip(b"\n") if event.lstrip(b"\n").startswith(_ERROR) else event for event in events
    )
