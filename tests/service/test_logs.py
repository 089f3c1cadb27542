"""Logs: JSON lines that never hold what must stay private; request ids that only mark lines."""

import json
from typing import Any

import pytest
import structlog
from starlette.responses import PlainTextResponse
from structlog.testing import capture_logs
from support.asgi import Exchange

from cosmos3_serve.service import logs


@pytest.fixture(autouse=True)
def restore() -> Any:
    yield
    structlog.reset_defaults()


def test_lines_are_json_and_private_things_are_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info")
    log = structlog.get_logger()
    log.debug("not shown")
    log.info("staged", prompt="a horse", tenant="acme", token="t0ken", source="from s3://acme-data/a/b.png failed",
             text="sent Bearer abc.def now", count=3)  # fmt: skip
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1
    line = json.loads(err)
    assert (line["event"], line["level"], line["count"]) == ("staged", "info", 3)
    for private in ("horse", "acme", "t0ken", "abc.def"):
        assert private not in err


async def ok(scope: Any, receive: Any, send: Any) -> None:
    structlog.get_logger().info("inside")
    await PlainTextResponse("ok", 200 if scope["path"] != "/nope" else 404)(scope, receive, send)


async def test_the_request_id_comes_back_and_stands_on_every_line() -> None:
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        exchange = await Exchange(path="/v1/batches", headers=[(b"x-request-id", b"abc-1")]).run(logs.RequestLog(ok))
    assert exchange.headers[b"x-request-id"] == b"abc-1"
    assert [line["http_request"] for line in lines] == ["abc-1", "abc-1"]
    assert lines[1]["path"] == "/v1/batches" and lines[1]["status"] == 200


@pytest.mark.parametrize("given", [b"", b"x" * 65, b"a b", b"a\r\nset-cookie: x", "ü".encode()])
async def test_an_unsafe_request_id_is_replaced(given: bytes) -> None:
    exchange = await Exchange(headers=[(b"x-request-id", given)]).run(logs.RequestLog(ok))
    assert exchange.headers[b"x-request-id"] != given and len(exchange.headers[b"x-request-id"]) == 32


async def test_unknown_paths_and_probes_leave_no_trace_of_their_path() -> None:
    with capture_logs() as lines:
        await Exchange(path="/nope").run(logs.RequestLog(ok))
        await Exchange(path="/health").run(logs.RequestLog(ok))
    http = [line for line in lines if line["event"] == "http"]
    assert [line["log_level"] for line in http] == ["info", "debug"] and http[0]["path"] == ""
