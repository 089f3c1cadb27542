"""Retries, deadline, bounds and refusals of the HTTP layer, against scripted transports: no clock is waited for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from cosmos3_serve.client import problem
from cosmos3_serve.client.deadline import Deadline
from cosmos3_serve.client.http import Service
from cosmos3_serve.errors import (
    ContractViolation,
    Cosmos3Error,
    Cosmos3RayServeError,
    ExitCode,
    Incomplete,
    InvalidRequestId,
    LimitExceeded,
    ModelNotLoaded,
    QueueFull,
    StorageAuthorizationError,
    Unauthorized,
    Unreachable,
    ValidationFailed,
)
from cosmos3_serve.retry import FIRST_CONTACT, RetryPolicy, retry_after

Step = httpx.Response | Exception


def service(*steps: Step, seconds: float = 60.0) -> tuple[Service, list[httpx.Request]]:
    """A service whose answers are the steps, in order; the last one repeats."""
    seen: list[httpx.Request] = []
    script = list(steps)

    async def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        step = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(step, Exception):
            raise step
        return httpx.Response(step.status_code, headers=step.headers, stream=httpx.ByteStream(step.content))

    made = Service("http://svc:8000", "tok", Deadline(seconds), transport=httpx.MockTransport(answer))
    return made, seen


@pytest.fixture(autouse=True)
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float, result: Any = None) -> Any:
        slept.append(seconds)
        return await real(0, result)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return slept


async def test_token_and_identity_travel_on_every_request() -> None:
    made, seen = service(httpx.Response(200, content=b"{}"))
    async with made:
        await made.call("GET", "/ready")
    assert seen[0].headers["Authorization"] == "Bearer tok"
    assert seen[0].headers["Accept-Encoding"] == "identity"
    assert "tok" not in repr(made)


async def test_transport_errors_are_retried_then_named(no_sleep: list[float]) -> None:
    made, seen = service(httpx.ConnectError("refused"))
    async with made:
        with pytest.raises(Unreachable, match=r"cannot reach the service at http://svc:8000: refused") as caught:
            await made.call("GET", "/ready", retry=FIRST_CONTACT)
    assert len(seen) == FIRST_CONTACT.attempts
    assert not caught.value.sent
    assert all(0 < a <= 0.25 * 2**i for i, a in enumerate(no_sleep))
    assert len(no_sleep) == FIRST_CONTACT.attempts - 1


@pytest.mark.parametrize("error", [httpx.ReadError("cut"), httpx.RemoteProtocolError("cut"), httpx.ReadTimeout("slow")])
async def test_what_is_not_idempotent_is_not_sent_twice(error: Exception) -> None:
    made, seen = service(error)
    async with made:
        with pytest.raises(Unreachable) as caught:
            await made.call("POST", "/v1/batches", content=b"{}", retry=RetryPolicy(attempts=5, resend=False))
    assert caught.value.sent
    assert len(seen) == 1


async def test_what_was_never_received_may_be_sent_again() -> None:
    made, seen = service(httpx.ConnectError("refused"), httpx.Response(200, content=b"ok"))
    async with made:
        answer = await made.call("POST", "/v1/batches", content=b"{}", retry=RetryPolicy(attempts=5, resend=False))
    assert (answer.status, answer.body, len(seen)) == (200, b"ok", 2)


async def test_passing_statuses_are_retried_and_retry_after_is_honoured(no_sleep: list[float]) -> None:
    made, _ = service(httpx.Response(429, headers={"Retry-After": "7"}), httpx.Response(503), httpx.Response(200))
    async with made:
        answer = await made.call("GET", "/v1/batches/x")
    assert answer.status == 200
    assert no_sleep[0] == 7
    assert 0 < no_sleep[1] <= 0.5


async def test_a_wait_past_the_deadline_is_not_begun(no_sleep: list[float]) -> None:
    made, _ = service(httpx.Response(503, headers={"Retry-After": "3600"}), seconds=30)
    async with made:
        with pytest.raises(Incomplete, match="deadline of 30 s") as caught:
            await made.call("GET", "/ready")
    assert caught.value.stable_code == "deadline_exceeded"
    assert no_sleep == []


async def test_one_deadline_covers_a_server_that_never_answers() -> None:
    async def hang(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    made = Service("http://svc", "tok", Deadline(0.05), transport=httpx.MockTransport(hang))
    async with made:
        with pytest.raises(Incomplete, match="deadline"):
            await made.call("POST", "/v1/batches", read_s=None)


async def test_bodies_are_bounded_and_never_decoded() -> None:
    made, _ = service(httpx.Response(200, content=b"x" * 2000))
    async with made:
        with pytest.raises(ContractViolation, match="larger than 1000 bytes"):
            await made.call("GET", "/ready", max_bytes=1000)
    made, _ = service(httpx.Response(200, content=b"x", headers={"Content-Encoding": "gzip"}))
    async with made:
        with pytest.raises(ContractViolation, match="identity"):
            await made.call("GET", "/ready")


async def test_a_redirect_is_never_followed() -> None:
    made, seen = service(httpx.Response(307, headers={"Location": "http://elsewhere/"}))
    async with made:
        answer = await made.call("GET", "/ready")
    assert len(seen) == 1
    error = answer.failure()
    assert isinstance(error, Cosmos3RayServeError)
    assert error.stable_code == "redirect_refused"


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", 5.0), ("", None), ("soon", None), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("-3", None)]
)
def test_retry_after_in_both_forms(text: str, seconds: float | None) -> None:
    assert retry_after({"Retry-After": text}) == seconds


def problem_body(**fields: Any) -> bytes:
    return json.dumps({"type": "about:blank", "title": "t", "detail": "d", "errors": [], **fields}).encode()


@pytest.mark.parametrize(
    ("status", "body", "kind", "code", "exit_code"),
    [
        (401, b'{"detail":"invalid bearer token"}', Unauthorized, "unauthorized", ExitCode.REFUSED),
        (400, b'{"detail":"invalid request id"}', Cosmos3Error, "invalid_input", ExitCode.INPUT),
        (400, problem_body(code="invalid_request_id"), InvalidRequestId, "invalid_request_id", ExitCode.INPUT),
        (400, problem_body(code="storage_not_authorized"), StorageAuthorizationError, None, ExitCode.INPUT),
        (404, problem_body(code="model_not_loaded"), ModelNotLoaded, "model_not_loaded", ExitCode.INPUT),
        (409, problem_body(code="request_id_conflict"), Cosmos3Error, "request_id_conflict", ExitCode.INPUT),
        (413, problem_body(code="limit_exceeded"), LimitExceeded, "limit_exceeded", ExitCode.INPUT),
        (422, b'{"detail":[{"loc":["body"],"msg":"bad"}]}', ValidationFailed, "validation_failed", ExitCode.INPUT),
        (429, problem_body(code="queue_full"), QueueFull, "queue_full", ExitCode.REFUSED),
        (500, b"Internal Server Error", Cosmos3RayServeError, "ray_serve_failed", ExitCode.SERVICE),
        (502, b"<html>\x1b[31mbad gateway</html>", Cosmos3RayServeError, "ray_serve_failed", ExitCode.SERVICE),
    ],
)
def test_answers_become_typed_failures(
    status: int, body: bytes, kind: Callable[..., Any], code: str | None, exit_code: int
) -> None:
    error = problem.failure(status, body)
    assert isinstance(error, kind)  # type: ignore[arg-type]
    assert error.detail.startswith(f"Cosmos3 Ray Serve request failed ({status}): ")
    assert "\x1b" not in error.detail
    assert error.exit_code == exit_code
    if code:
        assert error.stable_code == code


def test_field_errors_travel() -> None:
    found = [{"field": "samples[0].seed", "message": "too\x07large", "remedy": "smaller"}, "junk"]
    error = problem.failure(422, problem_body(code="validation_failed", errors=found))
    assert [e.as_dict() for e in error.errors] == [
        {"field": "samples[0].seed", "message": "too large", "remedy": "smaller"}
    ]


def test_not_ready_names_the_failing_checks() -> None:
    checks = [{"name": "weights", "ok": True}, {"name": "canary", "ok": False, "reason": "not run yet"}]
    assert problem.not_ready(json.dumps({"checks": checks}).encode()).detail == "canary: not run yet"
    assert problem.not_ready(b'{"detail":"model deployment is not ready"}').detail == "model deployment is not ready"
    assert problem.not_ready(b"<html>").exit_code == ExitCode.REFUSED
