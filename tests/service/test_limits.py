"""Body limits: by announcement, while streaming, and by time."""

import asyncio
import json
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from support.asgi import Exchange

from cosmos3_serve.service.limits import BodyLimit
from cosmos3_serve.service.problems import Problems


async def echo_length(scope: Any, receive: Any, send: Any) -> None:
    body = await Request(scope, receive).body()
    await PlainTextResponse(str(len(body)))(scope, receive, send)


APP = Problems(BodyLimit(echo_length, 1000, timeout_s=0.05))


async def test_a_body_up_to_the_limit_passes() -> None:
    exchange = await Exchange("POST", headers=[(b"content-length", b"1000")], body=[b"x" * 500, b"x" * 500]).run(APP)
    assert (exchange.status, exchange.content) == (200, b"1000")


async def test_an_announced_excess_is_refused_unread_with_the_number() -> None:
    exchange = await Exchange("POST", headers=[(b"content-length", b"1001")], body=[b"x" * 1001]).run(APP)
    problem = json.loads(exchange.content)
    assert exchange.status == 413 and exchange.reads == 0 and "1000 bytes" in problem["detail"]
    assert problem["code"] == "body_too_large" and exchange.headers[b"connection"] == b"close"


async def test_a_chunked_excess_is_refused_while_it_streams() -> None:
    exchange = Exchange("POST", headers=[(b"transfer-encoding", b"chunked")], body=[b"x" * 400] * 50)
    await exchange.run(APP)
    assert exchange.status == 413 and exchange.reads == 3


@pytest.mark.parametrize("length", [b"-1", b"abc", b"1e9", b""])
async def test_a_length_that_is_no_number_does_not_fool_it(length: bytes) -> None:
    exchange = await Exchange("POST", headers=[(b"content-length", length)], body=[b"x" * 1001]).run(APP)
    assert exchange.status == 413


async def test_a_body_that_never_ends_is_408_and_a_client_that_waits_is_not() -> None:
    class Slow(Exchange):
        async def receive(self) -> dict[str, Any]:
            await asyncio.Event().wait()
            return {}

    exchange = await Slow("POST").run(APP)
    assert exchange.status == 408

    async def waits_for_disconnect(scope: Any, receive: Any, send: Any) -> None:
        await Request(scope, receive).body()
        await receive()
        await PlainTextResponse("left")(scope, receive, send)

    class Leaves(Exchange):
        async def receive(self) -> dict[str, Any]:
            if not self._body:
                await asyncio.sleep(0.15)
            return await super().receive()

    exchange = await Leaves("POST", body=[b"x"]).run(Problems(BodyLimit(waits_for_disconnect, 10, timeout_s=0.05)))
    assert exchange.content == b"left"
