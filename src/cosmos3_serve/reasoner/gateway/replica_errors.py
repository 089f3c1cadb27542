"""What a replica's refusal becomes for the client: its own words where they are about the request, ours elsewhere.

A replica's message may name files of its machine and its own address; neither is the client's to know.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from cosmos3_serve.errors import Cosmos3Error, FieldError, InputError, InvalidRequest, ReplicaFailed
from cosmos3_serve.reasoner.sessions.router import Refused

MAX_MESSAGE = 2000
NOT_IMPLEMENTED = 501  # what this model cannot do: the request asks for it, and no replica will
_CACHE_MISS = re.compile(r"cache miss for \w+ at index \d+", re.IGNORECASE)
_ENGINE_DEAD = "EngineCore encountered an issue"
_URL = re.compile(r"\b(?:https?|file|tcp|ipc)://[^\s'\",)\]}>]+")
_PATH = re.compile(r"(?<![\w/.:-])/(?:[\w.@+-]+/)+[\w.@+-]*")
_ADDRESS = re.compile(r"\b(?:127\.0\.0\.1|localhost|0\.0\.0\.0)(?::\d+)?\b")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A replica's answer with an error status; `message` is cleaned."""

    status: int
    message: str
    kind: str = ""
    param: str | None = None
    cache_miss: bool = False
    engine_dead: bool = False
    retry_after_s: float | None = None

    @property
    def why(self) -> Refused:
        if self.status == NOT_IMPLEMENTED:
            return Refused.CLIENT_ERROR
        if self.status in (429, 503):
            return Refused.SATURATED
        if self.status >= 500 or self.status in (401, 403, 405):  # the latter: our own secret or route is wrong
            return Refused.SERVER_ERROR
        return Refused.CLIENT_ERROR

    def as_error(self) -> Cosmos3Error:
        """The client's answer, where the router has none of its own."""
        if self.why is not Refused.CLIENT_ERROR:
            remedy = "send it again once; if it fails again, change the request"
            return ReplicaFailed("the replica failed over this request", remedy=remedy, retry_after_s=1)
        found = (FieldError(self.param, self.message),) if self.param else ()
        status = InvalidRequest.status if self.status == NOT_IMPLEMENTED else self.status
        return client_error(status)(self.message, code=_code(self), errors=found)

    @property
    def type(self) -> str:
        """The engine's type of error, as codes are written; empty where it names none."""
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.kind).lower()
        return words if re.fullmatch(r"[a-z_]{3,60}", words) else ""


def read_refusal(status: int, body: bytes, retry_after: str | None = None) -> Refusal:
    """Understand an error answer, whatever it holds."""
    found: dict[str, Any] = {}
    try:
        value = json.loads(body)
        if isinstance(value, dict):
            found = value.get("error") if isinstance(value.get("error"), dict) else value  # type: ignore[assignment]
    except ValueError:
        pass
    text = found.get("message") or found.get("detail") or ""
    text = text if isinstance(text, str) else json.dumps(text)[:MAX_MESSAGE]
    param = found.get("param")
    return Refusal(
        status=status,
        message=clean(text) or f"the request was refused with status {status}",
        kind=str(found.get("type") or ""),
        param=param[:200] if isinstance(param, str) and param else None,
        cache_miss=status == 400 and _CACHE_MISS.search(text) is not None,
        engine_dead=status >= 500 and _ENGINE_DEAD in text,
        retry_after_s=float(retry_after) if retry_after and retry_after.isdigit() else None,
    )


def clean(text: str) -> str:
    """Without paths, URLs and addresses of the inside, and not longer than a page."""
    text = _URL.sub("[address]", text)
    text = _PATH.sub("[path]", text)
    text = _ADDRESS.sub("[address]", text)
    return text if len(text) <= MAX_MESSAGE else text[:MAX_MESSAGE] + "…"


def clean_event(event: bytes) -> bytes:
    """An error event of a replica's stream, cleaned and in our shape; `event` is `data: {"error": …}`."""
    from cosmos3_serve.service.openai_errors import error_object

    refusal = read_refusal(_status_in(event), event.removeprefix(b"data: ").strip())
    return b"data: " + json.dumps(error_object(refusal.as_error())).encode() + b"\n\n"


def _status_in(event: bytes) -> int:
    """The status that an error event carries as `code`; 500 where it carries none."""
    try:
        code = json.loads(event.removeprefix(b"data: "))["error"]["code"]
    except (ValueError, KeyError, TypeError):
        return 500
    return code if isinstance(code, int) and 400 <= code < 600 else 500


def first_event_refusal(chunk: bytes) -> Refusal | None:
    """A stream that begins with an error event was refused, only later than usual."""
    if not chunk.startswith(b'data: {"error"'):
        return None
    event = chunk.partition(b"\n\n")[0]
    return read_refusal(_status_in(event), event.removeprefix(b"data: "))


def client_error(status: int) -> type[InputError]:
    """A class of failures with exactly this 4xx status."""
    if status == InvalidRequest.status:
        return InvalidRequest
    return _CLIENT_ERRORS.setdefault(status, type("RequestRefused", (InputError,), {"status": status}))


_CLIENT_ERRORS: dict[int, type[InputError]] = {}


def _code(refusal: Refusal) -> str:
    return refusal.type or "invalid_request"
