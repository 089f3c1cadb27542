"""BearerAuth: one pure ASGI middleware in front of everything, known path or not, before any body is read."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from cosmos3_serve.errors import Unauthorized
from cosmos3_serve.service.problems import Render, problem_message, send_problem
from cosmos3_serve.service.tokens import TokenBook

TENANT_KEY = "cosmos3.tenant"
DETAIL = "invalid bearer token"  # the baseline's text


class BearerAuth:
    """Lets a request through when it carries a valid token, and puts the token's tenant into `scope[TENANT_KEY]`.

    The scheme's case does not matter (RFC 9110; the baseline wants `Bearer`, which is a subset). Two `Authorization`
    headers are refused: which one counts would depend on who reads them.

    Args:
        on_refusal: called once per refused request, for the metrics.
        render: the shape of a refusal.
    """

    def __init__(
        self,
        app: ASGIApp,
        book: TokenBook,
        on_refusal: Callable[[], None] = lambda: None,
        render: Render = problem_message,
    ) -> None:
        self.app = app
        self.book = book
        self.on_refusal = on_refusal
        self.render = render

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        await self.book.refresh()
        tenant = self._tenant(scope)
        if tenant is not None:
            scope[TENANT_KEY] = tenant
            await self.app(scope, receive, send)
            return
        self.on_refusal()
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": DETAIL})
            return
        await send_problem(
            Unauthorized(DETAIL),
            receive,
            send,
            headers=[(b"www-authenticate", b"Bearer")],
            close=_announces_body(scope),
            render=self.render,
        )

    def _tenant(self, scope: Scope) -> str | None:
        values = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(values) != 1:
            return None
        scheme, _, token = values[0].strip(b" \t").partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        return self.book.tenant_of(token.strip(b" \t"))


def tenant_of(scope: Scope) -> str:
    """Tenant of an authenticated request. Raises KeyError where authentication was bypassed: never a default."""
    tenant: str = scope[TENANT_KEY]
    return tenant


def _announces_body(scope: Scope) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in scope["headers"]
    )
