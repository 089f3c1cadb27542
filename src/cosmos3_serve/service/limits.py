"""BodyLimit: how large and how slow a request body may be, decided before and while it is read."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cosmos3_serve.errors import LimitExceeded, RequestTimeout

BODY_TIMEOUT_S = 120.0


class BodyLimit:
    """Refuses a body of more than `max_bytes`: at once when its length is announced, else while it streams.

    Raises (for `Problems` to answer):
        LimitExceeded: 413, with the limit in bytes.
        RequestTimeout: 408, the body was not complete after `timeout_s` seconds.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, timeout_s: float = BODY_TIMEOUT_S) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self.timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        for name, value in scope["headers"]:
            # Whatever int() accepts beyond digits never passes the HTTP parser.
            if name == b"content-length" and value.isdigit() and int(value) > self.max_bytes:
                raise self._too_large()
        seen = 0
        done = False
        deadline: float | None = None

        async def limited() -> Message:
            nonlocal seen, done, deadline
            if done:
                # After the body this call only waits for the client to leave; that may take as long as it likes.
                return await receive()
            loop = asyncio.get_running_loop()
            deadline = deadline or loop.time() + self.timeout_s
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise RequestTimeout(f"the request body was not complete after {self.timeout_s:g} seconds") from None
            seen += len(message.get("body", b""))
            done = message["type"] != "http.request" or not message.get("more_body", False)
            if seen > self.max_bytes:
                raise self._too_large()
            return message

        await self.app(scope, limited, send)

    def _too_large(self) -> LimitExceeded:
        return LimitExceeded(
            f"the request body is larger than {self.max_bytes} bytes",
            code="body_too_large",
            remedy="send fewer samples in one batch, or ask the operator for a larger limit",
        )
