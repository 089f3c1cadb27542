"""Failures become problems; what nobody foresaw tells an incident id and nothing else."""

import json
import pickle
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router
from structlog.testing import capture_logs
from support.asgi import Exchange

from cosmos3_serve.errors import Cosmos3Error, FieldError, QueueFull, ValidationFailed
from cosmos3_serve.service.problems import Problems
from cosmos3_serve.service.tracebacks import Tracebacks


async def full(_: Request) -> Response:
    raise QueueFull("the queue holds 4096 samples", retry_after_s=2.2)


async def invalid(_: Request) -> Response:
    raise ValidationFailed("2 fields", errors=[FieldError("samples[0].fps", "must be positive", "use 24")])


async def broken(_: Request) -> Response:
    raise RuntimeError("a prompt about a secret horse")


async def fine(_: Request) -> Response:
    return PlainTextResponse("ok")


APP = Problems(
    Router(
        [Route("/full", full), Route("/invalid", invalid, methods=["POST"]), Route("/broken", broken), Route("/", fine)]
    )
)


async def test_a_typed_failure_keeps_code_fields_and_retry_after() -> None:
    exchange = await Exchange(path="/full").run(APP)
    assert exchange.status == 429 and exchange.headers[b"retry-after"] == b"3"
    exchange = await Exchange("POST", "/invalid").run(APP)
    problem = json.loads(exchange.content)
    assert exchange.status == problem["status"] == 422
    assert problem["errors"] == [{"field": "samples[0].fps", "message": "must be positive", "remedy": "use 24"}]


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nope", 404), ("PUT", "/", 405), ("GET", "/invalid", 405)]
)
async def test_routing_failures_are_problems_too(method: str, path: str, status: int) -> None:
    exchange = await Exchange(method, path).run(APP)
    assert exchange.status == status and exchange.headers[b"content-type"] == b"application/problem+json"
    assert isinstance(json.loads(exchange.content)["detail"], str)
    assert (b"allow" in exchange.headers) == (status == 405)


async def test_the_unforeseen_is_a_500_that_quotes_nothing() -> None:
    with capture_logs(processors=[Tracebacks(messages=False)]) as logs:
        exchange = await Exchange(path="/broken").run(APP)
    problem = json.loads(exchange.content)
    assert exchange.status == 500 and problem["code"] == "internal_error"
    assert "horse" not in exchange.content.decode() + repr(logs)
    assert logs[0]["incident"] in problem["detail"] and logs[0]["exception"] == "RuntimeError"
    assert any("broken" in place for place in logs[0]["frames"])


async def test_a_failure_after_the_headers_breaks_the_answer_off() -> None:
    async def half(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise QueueFull("too late")

    exchange = Exchange()
    with pytest.raises(Cosmos3Error):
        await exchange.run(Problems(half))
    assert [m["type"] for m in exchange.sent] == ["http.response.start"]


async def test_a_body_that_was_not_read_closes_the_connection_only_if_there_is_one() -> None:
    assert b"connection" not in (await Exchange(path="/full").run(APP)).headers
    exchange = await Exchange("POST", "/full", [(b"content-length", b"3")], [b"abc"]).run(APP)
    assert exchange.headers[b"connection"] == b"close"


def test_failures_survive_pickling_on_their_way_out_of_a_replica() -> None:
    error = pickle.loads(pickle.dumps(QueueFull("full", retry_after_s=3, code="queue_full_now")))
    assert (error.retry_after_s, error.stable_code) == (3, "queue_full_now")
