"""The middleware that vLLM's server runs: nothing passes without the secret."""

from __future__ import annotations

from typing import Any

import pytest

from cosmos3_serve.reasoner.engine.secret import HEADER, SECRET_ENV, ReplicaSecret
from cosmos3_serve.reasoner.setup import SECRET_HEADER

SECRET = "only-we-know"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_ENV, SECRET)


async def ask(scope: dict[str, Any]) -> tuple[bool, list[dict[str, Any]]]:
    reached, sent = [], []

    async def app(*_: object) -> None:
        reached.append(True)

    async def receive() -> dict[str, Any]:
        raise AssertionError("the body is not read")

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await ReplicaSecret(app)(scope, receive, send)
    return bool(reached), sent


def http(*values: bytes, path: str = "/health") -> dict[str, Any]:
    return {"type": "http", "path": path, "headers": [(HEADER, value) for value in values]}


def test_both_sides_call_the_header_alike() -> None:
    assert HEADER.decode() == SECRET_HEADER


async def test_the_secret_opens_and_lifespan_needs_none() -> None:
    assert await ask(http(SECRET.encode())) == (True, [])
    assert await ask({"type": "lifespan"}) == (True, [])


@pytest.mark.parametrize(
    "values", [(), (b"",), (b"wrong",), (SECRET.encode() + b" ",), (b"\xff\xfe",), (SECRET.encode(), SECRET.encode())]
)
async def test_anything_else_is_401_before_the_body(values: tuple[bytes, ...]) -> None:
    reached, sent = await ask(http(*values))
    assert not reached
    assert sent[0]["status"] == 401
    assert int(dict(sent[0]["headers"])[b"content-length"]) == len(sent[1]["body"])


async def test_a_websocket_is_closed() -> None:
    reached, sent = await ask({"type": "websocket", "path": "/v1/realtime", "headers": []})
    assert not reached
    assert sent == [{"type": "websocket.close", "code": 1008, "reason": "no secret"}]


def test_without_a_secret_the_server_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET_ENV)
    with pytest.raises(RuntimeError):
        ReplicaSecret(None)
