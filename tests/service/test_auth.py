"""Authentication comes first, for every path and every kind of request, and reads nothing."""

import json
from typing import Any

import pytest
from support.asgi import Exchange

from cosmos3_serve.service.auth import BearerAuth, tenant_of
from cosmos3_serve.service.tokens import TokenBook

TOKEN = "right-token-123"


class Inner:
    tenants: list[str]

    def __init__(self) -> None:
        self.tenants = []
        self.kinds: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.kinds.append(scope["type"])
        if scope["type"] == "http":
            self.tenants.append(tenant_of(scope))
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"in"})


@pytest.fixture
def inner() -> Inner:
    return Inner()


@pytest.fixture
def app(inner: Inner) -> BearerAuth:
    return BearerAuth(inner, TokenBook(TOKEN, None))


@pytest.mark.parametrize("value", ["Bearer {}", "bearer {}", "BEARER {}", "Bearer   {}", " Bearer {} "])
async def test_the_right_token_passes_in_any_case_of_the_scheme(value: str, app: BearerAuth, inner: Inner) -> None:
    exchange = await Exchange(headers=[(b"authorization", value.format(TOKEN).encode())]).run(app)
    assert exchange.status == 200 and inner.tenants == ["default"]


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Bearer ")],
        [(b"authorization", TOKEN.encode())],
        [(b"authorization", b"Basic " + TOKEN.encode())],
        [(b"authorization", b"Bearer " + TOKEN.encode() + b"x")],
        [(b"authorization", b"Bearer " + TOKEN.encode()[:-1])],
        [(b"authorization", "Bearer schlüssel".encode())],
        [(b"authorization", b"Bearer \xff\xfe\x00")],
        [(b"authorization", b"Bearer " + TOKEN.encode()), (b"authorization", b"Bearer x")],
        [(b"x-authorization", b"Bearer " + TOKEN.encode())],
    ],
)
@pytest.mark.parametrize(
    "path", ["/health", "/v1/batches", "/docs", "/openapi.json", "/-/healthz", "/-/routes", "/nope"]
)
async def test_anything_else_is_401_on_every_path(
    headers: list[tuple[bytes, bytes]], path: str, app: BearerAuth, inner: Inner
) -> None:
    exchange = await Exchange("POST", path, [*headers, (b"content-length", b"4")], [b"body"]).run(app)
    assert exchange.status == 401 and inner.kinds == []
    assert exchange.headers[b"www-authenticate"] == b"Bearer"
    assert exchange.headers[b"content-type"] == b"application/problem+json"
    assert exchange.headers[b"connection"] == b"close"
    problem = json.loads(exchange.content)
    assert problem["detail"] == "invalid bearer token" and problem["code"] == "unauthorized"
    assert exchange.reads == 0


async def test_an_endless_body_is_not_drained_for_ever(app: BearerAuth) -> None:
    exchange = Exchange("POST", "/", [(b"transfer-encoding", b"chunked")], [b"x" * 65536] * 100)
    left_before = len(exchange._body)
    await exchange.run(app)
    assert exchange.status == 401 and left_before - len(exchange._body) < 10


async def test_lifespan_passes_and_a_websocket_is_closed(app: BearerAuth, inner: Inner) -> None:
    await Exchange(type="lifespan").run(app)
    assert inner.kinds == ["lifespan"]
    exchange = await Exchange(type="websocket").run(app)
    assert exchange.sent[0]["type"] == "websocket.close" and inner.kinds == ["lifespan"]


async def test_refusals_are_counted(inner: Inner) -> None:
    count: list[int] = []
    app = BearerAuth(inner, TokenBook(TOKEN, None), lambda: count.append(1))
    await Exchange().run(app)
    await Exchange(headers=[(b"authorization", b"Bearer " + TOKEN.encode())]).run(app)
    assert len(count) == 1
