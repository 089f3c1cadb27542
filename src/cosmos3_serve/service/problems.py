"""Failures as HTTP answers: every `Cosmos3Error` becomes `application/problem+json` (RFC 9457).

What nobody foresaw becomes a 500 with an incident id; the log line of that id holds the exception's type and place but
not its text, because exception texts quote prompts.
"""

from __future__ import annotations

import asyncio
import json
import math
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cosmos3_serve.errors import Cosmos3Error, MethodNotAllowed, NotFound

log = structlog.get_logger(__name__)

CONTENT_TYPE = b"application/problem+json"

# What is still taken from a client that was refused while it sends: enough for it to see the answer before the
# connection closes under it, and a bound on what a stranger can make us read.
DRAIN_BYTES = 256 * 1024
DRAIN_S = 2.0

Headers = list[tuple[bytes, bytes]]
Render = Callable[[Cosmos3Error], tuple[int, Headers, bytes]]  # a failure's status, headers and body


def problem_message(error: Cosmos3Error, extra: Mapping[str, Any] | None = None) -> tuple[int, Headers, bytes]:
    """Status, headers and body of a failure; `extra` adds members to the body."""
    problem = {**error.as_problem(), **(extra or {})}
    body = json.dumps(problem, ensure_ascii=False).encode("utf-8", "backslashreplace")
    headers = [(b"content-type", CONTENT_TYPE), (b"content-length", str(len(body)).encode())]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(error.retry_after_s))).encode()))
    return error.status, headers, body


async def send_problem(
    error: Cosmos3Error,
    receive: Receive,
    send: Send,
    *,
    headers: Headers | None = None,
    close: bool = False,
    render: Render = problem_message,
    drain_bytes: int = DRAIN_BYTES,
) -> None:
    """Answer with a problem. `close` ends the connection, because the request's body was not read to its end; up to
    `drain_bytes` of it are taken first."""
    status, own, body = render(error)
    own = [*own, *(headers or [])]
    if close:
        own.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": own})
    await send({"type": "http.response.body", "body": body, "more_body": close})
    if close:
        await _drain(receive, drain_bytes)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _drain(receive: Receive, most: int) -> None:
    """Throw away a little of what still arrives: closing on unread bytes resets the connection and loses the answer."""
    seen = 0
    try:
        async with asyncio.timeout(DRAIN_S * max(1.0, most / (64 * DRAIN_BYTES))):
            while seen <= most:
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
                seen += len(message.get("body", b""))
    except TimeoutError:
        return


class Problems:
    """Turns what the application raises into problems. Stands inside authentication and outside everything else.

    Args:
        render: the shape of the answers; another one for a service that speaks another dialect.
        drain_bytes: of a refused body that are taken before the connection closes: many clients look for an answer
            only once they have sent everything.
    """

    def __init__(self, app: ASGIApp, render: Render = problem_message, drain_bytes: int = DRAIN_BYTES) -> None:
        self.app = app
        self.render = render
        self.drain_bytes = drain_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False
        body_open = True

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        async def watched_receive() -> Message:
            nonlocal body_open
            message = await receive()
            body_open = message["type"] == "http.request" and message.get("more_body", False)
            return message

        # Starlette's router raises its 404 and 405 only inside an application; otherwise it answers in plain text.
        scope.setdefault("app", self)
        try:
            await self.app(scope, watched_receive, watched_send)
            return
        except Cosmos3Error as raised:
            error, headers = raised, Headers()
        except HTTPException as raised:
            error, headers = _routing_error(scope, raised)
        except ClientDisconnect:
            return  # nobody is left to answer
        except Exception as raised:
            error, headers = unexpected(raised), Headers()
        if started:
            # Too late for a status. Raising breaks the connection, so that nobody takes a part for the whole.
            raise error
        close = body_open and has_body(scope)
        await send_problem(
            error, receive, send, headers=headers, close=close, render=self.render, drain_bytes=self.drain_bytes
        )


def unexpected(raised: BaseException) -> Cosmos3Error:
    """A 500 for our own fault; logs type and place under an incident id that the caller sees too."""
    incident = uuid.uuid4().hex[:12]
    log.error("unexpected_exception", incident=incident, exc_info=raised)
    return Cosmos3Error(
        f"something broke on our side; incident {incident}", remedy="report the incident id to the operator"
    )


def _routing_error(scope: Scope, raised: HTTPException) -> tuple[Cosmos3Error, Headers]:
    headers = [(k.lower().encode(), v.encode()) for k, v in (raised.headers or {}).items()]
    if raised.status_code == 405:
        return MethodNotAllowed(f"{scope['method']} is not allowed on this path"), headers
    return NotFound("Not Found"), headers


def has_body(scope: Scope) -> bool:
    names = {name for name, value in scope["headers"] if value != b"0"}
    return bool(names & {b"content-length", b"transfer-encoding"})
