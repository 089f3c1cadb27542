"""Ask: what a chat body says to the gateway, and the body without it.

Everything else in the body is the engine's business and passes through: stop, seed, logprobs, structured outputs,
tools, sampling. What is taken out is ours (`cosmos3`), the session's name, or would let a client name things inside
the engine that other clients use too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from cosmos3_serve.errors import Cosmos3Error, FieldError, InvalidRequest, ModelNotLoaded
from cosmos3_serve.reasoner.sessions.keys import MAX_SESSION_BYTES

MAX_CHOICES = 64
SESSION_FIELD = "session_id"
# Ids and addresses of the inside of an engine, and payloads that go around the media gate.
_NEVER_SENT = (
    "cosmos3", SESSION_FIELD, "request_id", "kv_transfer_params", "ec_transfer_params", "mm_payload",
    "return_mm_kwargs", "prompt_embeds",
)  # fmt: skip
_OURS = frozenset({"explain"})
_NO_WORK = frozenset({"model", "stream", "stream_options", "user", "cache_salt"})  # how it is sent and who asks


@dataclass(frozen=True, slots=True)
class Ask:
    """
    Args:
        body: for the engine; the media are still left out.
        session: the body's `session_id`, used where no header names the session.
        n: answers that it asks for.
    """

    body: dict[str, Any]
    stream: bool = False
    explain: bool = False
    session: bytes | None = None
    n: int = 1

    def digest(self, media: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """The same for every request that gives an engine the same work, whoever asks.

        Args:
            media: content hashes and options of the media, which the body lacks.
        """
        work = {name: value for name, value in self.body.items() if name not in _NO_WORK}
        items = [(sha256, dict(options)) for sha256, options in media]
        return blake2b(json.dumps([work, items]).encode(), digest_size=16).hexdigest()


def read_ask(body: dict[str, Any], served: str) -> Ask:
    """Take what is ours out of a parsed body (changed in place).

    Raises:
        ModelNotLoaded: another model than `served`.
        InvalidRequest: a field of ours is not what it must be; `errors[0].field` names it.
    """
    model = body.setdefault("model", served)
    if model != served:
        detail = f"the model {model[:100]!a} does not exist here" if isinstance(model, str) else "model is no string"
        field = FieldError("model", detail, f"use {served}")
        raise ModelNotLoaded(detail, code="model_not_found", remedy=f"use {served}", errors=(field,))
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise invalid("messages", "messages must be a list that is not empty")
    if not isinstance(body.get("stream"), bool | None):
        raise invalid("stream", "stream must be true or false")
    _check_choices(body.get("n"))
    session = _session(body.get(SESSION_FIELD))
    explain = _explain(body.get("cosmos3"))
    for name in _NEVER_SENT:
        body.pop(name, None)
    return Ask(body, stream=bool(body.get("stream")), explain=explain, session=session, n=body.get("n") or 1)


def _check_choices(n: Any) -> None:
    if n is not None and (isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MAX_CHOICES):
        raise invalid("n", f"n must be a whole number from 1 to {MAX_CHOICES}")


def _session(value: Any) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, str) or len(value.encode("utf-8", "replace")) > MAX_SESSION_BYTES:
        raise invalid(SESSION_FIELD, f"{SESSION_FIELD} must be a string of at most {MAX_SESSION_BYTES} bytes")
    return value.encode("utf-8", "replace")


def _explain(value: Any) -> bool:
    if value is None:
        return False
    if not isinstance(value, dict) or value.keys() - _OURS or not isinstance(value.get("explain", False), bool):
        raise invalid("cosmos3", 'cosmos3 must be {"explain": true} or {"explain": false}')
    return bool(value.get("explain", False))


def invalid(field: str, message: str) -> Cosmos3Error:
    return InvalidRequest(message, errors=(FieldError(field, message),))
