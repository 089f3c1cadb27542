"""EventStream: how an endpoint's stream begins, fails and ends, as far as the gateway must know it.

Chat and completions send chunks and end with `[DONE]`. Responses are typed events: two of them come before the engine
has done anything, and one of three is the last.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

from cosmos3_serve.reasoner.gateway.connection import Ended
from cosmos3_serve.reasoner.gateway.endpoint import Endpoint
from cosmos3_serve.reasoner.gateway.replica_errors import Refusal, clean_event, first_event_refusal
from cosmos3_serve.service.openai_errors import error_event

_ERROR = b'data: {"error"'
_DONE = b"[DONE]"
_TAIL = 48
# What an engine says of answers that it gave up. Unescaped, so no text of an answer holds it.
_ABORTED = re.compile(rb'"finish_reason": ?"abort"')


def aborted(answer: bytes) -> bool:
    """Whether an engine gave an answer up: it calls that a reason to finish, and its status is 200."""
    return b'"abort"' in answer and _ABORTED.search(answer) is not None


class EventStream:
    """Chunks, as chat and completions send them. One for each answer."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._tail = b""

    def begun(self, first: bytes) -> bool:
        """Whether these first bytes hold something that the engine has said."""
        return bool(first)

    def refusal(self, first: bytes) -> Refusal | None:
        """What the stream says instead of an answer."""
        return first_event_refusal(first)

    def cleaned(self, piece: bytes) -> bytes:
        """Error events of the replica in our shape; everything else as it is.

        Raises:
            Ended: the engine gave the answer up.
        """
        if aborted(self._tail + piece):
            raise Ended
        if _ERROR not in piece:
            return piece
        return b"\n\n".join(
            clean_event(event).rstrip(b"\n") if event.lstrip(b"\n").startswith(_ERROR) else event
            for event in piece.split(b"\n\n")
        )

    def passed(self, piece: bytes) -> None:
        """These bytes have gone to the client."""
        self._tail = (self._tail + piece)[-_TAIL:]

    @property
    def ended(self) -> bool:
        """Whether the stream has said that it is over."""
        return _DONE in self._tail

    def error(self, value: dict[str, Any]) -> bytes:
        """The end of a stream that broke."""
        return error_event(value)

    def explanation(self, model: str, value: dict[str, Any]) -> bytes:
        """As the usage event is shaped: a chunk without choices, which clients must skip."""
        chunk = {
            "id": "chatcmpl-explain",
            "object": self._endpoint.chunk,
            "created": int(time.time()),
            "model": model,
            "choices": [],
            "cosmos3": value,
        }
        return b"data: " + json.dumps(chunk).encode() + b"\n\n"


class TypedEventStream(EventStream):
    """Typed events, as /v1/responses sends them."""

    _EMPTY = (b"event: response.created\n", b"event: response.in_progress\n")
    _LAST = re.compile(rb"(?:^|\n)event: (?:response\.(?:completed|incomplete|failed)|error)\n")
    _FAILED = re.compile(rb"event: error\n|data: \{\"error\"")

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._over = False

    def begun(self, first: bytes) -> bool:
        return any(event and not _begins(event, self._EMPTY) for event in first.split(b"\n\n"))

    def refusal(self, first: bytes) -> Refusal | None:
        event = next((e for e in first.split(b"\n\n") if e and not _begins(e, self._EMPTY)), b"")
        return first_event_refusal(_as_chunk(event)) if self._FAILED.match(event) else None

    def cleaned(self, piece: bytes) -> bytes:
        if aborted(self._tail + piece):
            raise Ended
        if b'"error"' not in piece:
            return piece
        return b"\n\n".join(
            self._cleaned_event(event) if self._FAILED.match(event) else event for event in piece.split(b"\n\n")
        )

    def _cleaned_event(self, event: bytes) -> bytes:
        value = json.loads(clean_event(_as_chunk(event)).removeprefix(b"data: "))
        return self.error(value).rstrip(b"\n")

    def passed(self, piece: bytes) -> None:
        held = self._tail + piece  # the last event holds the whole answer: its name is far from the end
        self._over = self._over or self._LAST.search(held) is not None
        self._tail = held[-_TAIL:]

    @property
    def ended(self) -> bool:
        return self._over and self._tail.endswith(b"\n\n")

    def error(self, value: dict[str, Any]) -> bytes:
        said = value["error"]
        event = {"type": "error", "sequence_number": 0, "code": said["code"], "message": said["message"],
                 "param": said["param"], **value}  # fmt: skip
        return b"event: error\ndata: " + json.dumps(event, ensure_ascii=False).encode("utf-8", "replace") + b"\n\n"


def event_stream(endpoint: Endpoint) -> EventStream:
    return EventStream(endpoint) if endpoint.chunk else TypedEventStream(endpoint)


def _begins(event: bytes, names: tuple[bytes, ...]) -> bool:
    """Whether it is one of these, as far as it has come."""
    return any(event.startswith(name) or name.startswith(event) for name in names)


def _as_chunk(event: bytes) -> bytes:
    """An error event as chat has it: its data alone, the error inside."""
    data = event.partition(b"data: ")[2]
    try:
        value = json.loads(data)
    except ValueError:
        value = {}
    if not isinstance(value, dict) or not isinstance(value.get("error"), dict):
        value = {"error": value if isinstance(value, dict) else {}}
    return b"data: " + json.dumps(value).encode()
