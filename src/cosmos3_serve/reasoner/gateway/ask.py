"""Ask: what a request's body says to the gateway, and the body without it.

Everything else in the body is the engine's business and passes through: stop, seed, logprobs, structured outputs,
tools, sampling. `fields.py` lists what each endpoint takes. What is taken out is ours (`cosmos3`), the session's name,
and what has no effect.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from cosmos3_serve.errors import Cosmos3Error, FieldError, InvalidRequest, ModelNotLoaded
from cosmos3_serve.reasoner.gateway.endpoint import CHAT, Endpoint
from cosmos3_serve.reasoner.sessions.keys import MAX_SESSION_BYTES

MAX_CHOICES = 64
SESSION_FIELD = "session_id"
_TAKEN_OUT = ("cosmos3", SESSION_FIELD, "best_of")
_OURS = frozenset({"explain"})
_NO_WORK = frozenset({"model", "stream", "stream_options", "user", "cache_salt"})  # how it is sent and who asks
_STREAM_OPTIONS = frozenset({"include_usage", "continuous_usage_stats"})
_FUNCTION_TOOLS = frozenset({"function", "custom", "namespace"})


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
    endpoint: Endpoint = CHAT

    def digest(self, media: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """The same for every request that gives an engine the same work, whoever asks.

        Args:
            media: content hashes and options of the media, which the body lacks.
        """
        work = {name: value for name, value in self.body.items() if name not in _NO_WORK}
        items = [(sha256, dict(options)) for sha256, options in media]
        return blake2b(json.dumps([work, items]).encode(), digest_size=16).hexdigest()


def read_ask(
    body: dict[str, Any],
    served: str,
    endpoint: Endpoint = CHAT,
    max_tokens: int | None = None,
    *,
    tools: bool = True,
) -> Ask:
    """Take what is ours out of a parsed body (changed in place).

    Args:
        max_tokens: of an answer at most: the model's length.
        tools: the engines read tool calls.

    Raises:
        ModelNotLoaded: another model than `served`.
        InvalidRequest: a field that nobody would act on, or one of ours is not what it must be; `errors[0].field`
            names it.
    """
    endpoint.fields.check(body, endpoint.path)
    model = body.setdefault("model", served)
    if model != served:
        detail = f"the model {model[:100]!a} does not exist here" if isinstance(model, str) else "model is no string"
        field = FieldError("model", detail, f"use {served}")
        raise ModelNotLoaded(detail, code="model_not_found", remedy=f"use {served}", errors=(field,))
    if not isinstance(body.get("stream"), bool | None):
        raise invalid("stream", "stream must be true or false")
    stream = bool(body.get("stream"))
    explain = _explain(body.get("cosmos3"))
    n = _check_choices(body.get("n"))
    if endpoint.turns == "messages":
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise invalid("messages", "messages must be a list that is not empty")
        _check_stream_options(body.get("stream_options"))
    elif endpoint.turns == "prompt":
        n *= _check_prompt(body.get("prompt"), n)
        _check_stream_options(body.get("stream_options"))
        if body.get("best_of") not in (None, body.get("n") or 1):
            raise not_taken("best_of", "best_of can only be the same as n here", "send n alone")
    else:
        _check_response(body)
        if explain and stream:
            raise not_taken("cosmos3", "an answer of /v1/responses is explained whole only", "leave stream out")
    if not tools and body.get("tools") and body.get("tool_choice") != "none":
        raise not_taken("tools", "tools are switched off here (--tool-parser none)", "leave tools out")
    if body.get("tool_choice") not in (None, "auto", "none"):
        _pin_arguments(body.get("tools"), flat=endpoint.turns == "input")
    for name in endpoint.limits:
        _check_limit(name, body.get(name), max_tokens)
    session = _session(body.get(SESSION_FIELD))
    for name in _TAKEN_OUT:
        body.pop(name, None)
    return Ask(body, stream=stream, explain=explain, session=session, n=n, endpoint=endpoint)


def _check_choices(n: Any) -> int:
    if n is not None and (isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MAX_CHOICES):
        raise invalid("n", f"n must be a whole number from 1 to {MAX_CHOICES}")
    return n or 1


def _check_prompt(prompt: Any, n: int) -> int:
    """How many prompts there are."""
    if isinstance(prompt, str):
        return 1
    if not isinstance(prompt, list) or not prompt or not all(isinstance(text, str) for text in prompt):
        raise invalid("prompt", "prompt must be a text, or a list of texts that is not empty")
    if len(prompt) * n > MAX_CHOICES:
        raise invalid("prompt", f"prompts times n must be at most {MAX_CHOICES}, not {len(prompt) * n}")
    return len(prompt)


def _check_limit(name: str, value: Any, most: int | None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
        shown = f", not {value}" if isinstance(value, int) else ""
        upper = f"from 1 to {most}, the model's length" if most is not None else "above 0"
        raise invalid(name, f"{name} must be a whole number {upper}{shown}")


def _check_stream_options(options: Any) -> None:
    """The engine drops what it does not know of them."""
    for name, value in options.items() if isinstance(options, dict) else ():
        if name not in _STREAM_OPTIONS and not (name == "include_obfuscation" and not value):
            remedy = f"use {' or '.join(sorted(_STREAM_OPTIONS))}"
            raise not_taken(f"stream_options.{name[:60]}", f"stream_options has no {name[:60]!a} here", remedy)


def _check_response(body: dict[str, Any]) -> None:
    if not isinstance(body.get("input"), str | list) or not body["input"]:
        raise invalid("input", "input must be a text, or a list of items, that is not empty")
    tools = body.get("tools")
    for number, tool in enumerate(tools if isinstance(tools, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind not in _FUNCTION_TOOLS:  # the engine would leave it out of the question
            detail = f"a tool of type {kind[:40]!a} does not run here"
            raise not_taken(f"tools[{number}].type", detail, "describe it as a function and run it yourself")
    text = body.get("text")
    if isinstance(text, dict) and text.get("verbosity") not in (None, "medium"):
        raise not_taken("text.verbosity", "text.verbosity can only be medium here", "say it in instructions")
    body["store"] = False  # an engine that an operator lets store would keep it for ever


def _pin_arguments(tools: Any, *, flat: bool) -> None:
    """A call that is demanded is one that can be run: its arguments hold to the function's schema, unless the client
    says otherwise. The engine would else take any JSON, also what is no object."""
    for tool in tools if isinstance(tools, list) else ():
        function = tool if flat or not isinstance(tool, dict) else tool.get("function")
        if isinstance(function, dict) and function.get("strict") is None:
            function["strict"] = True


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


def not_taken(field: str, message: str, remedy: str) -> Cosmos3Error:
    found = (FieldError(field, message, remedy),)
    return InvalidRequest(message, code="unsupported_field", remedy=remedy, errors=found)
