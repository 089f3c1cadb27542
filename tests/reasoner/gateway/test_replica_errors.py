"""What a replica's refusal becomes: whose fault, in whose words, and nothing of the inside."""

import json

import pytest

from cosmos3_serve.errors import InvalidRequest
from cosmos3_serve.reasoner.gateway.replica_errors import clean, clean_event, first_event_refusal, read_refusal
from cosmos3_serve.reasoner.sessions.router import Refused
from cosmos3_serve.service.openai_errors import error_object


def body(message: str, kind: str = "BadRequestError", **more: object) -> bytes:
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": 400, **more}}).encode()


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (400, Refused.CLIENT_ERROR), (404, Refused.CLIENT_ERROR), (422, Refused.CLIENT_ERROR),
        (429, Refused.SATURATED), (503, Refused.SATURATED), (500, Refused.SERVER_ERROR), (502, Refused.SERVER_ERROR),
        (501, Refused.CLIENT_ERROR),  # no replica will ever do it
        (401, Refused.SERVER_ERROR),  # our own secret was refused: no fault of the client
    ],
)  # fmt: skip
def test_a_status_says_whose_fault_it_is(status: int, why: Refused) -> None:
    assert read_refusal(status, body("x")).why is why


def test_a_client_error_keeps_the_engine_s_words_status_and_param() -> None:
    refusal = read_refusal(422, body("max_tokens is too large", param="max_tokens"))
    error = refusal.as_error()
    assert error.status == 422
    assert error_object(error)["error"] == {
        "message": "max_tokens is too large", "type": "invalid_request_error", "param": "max_tokens",
        "code": "bad_request_error",
    }  # fmt: skip
    assert isinstance(read_refusal(400, body("x")).as_error(), InvalidRequest)


def test_a_broken_replica_is_a_502_in_our_words() -> None:
    error = read_refusal(500, body("Traceback in /opt/x.py", "InternalServerError")).as_error()
    assert (error.status, error.stable_code) == (502, "replica_failed")
    assert "Traceback" not in error.detail


def test_what_no_replica_implements_is_the_request_s_fault_in_the_engine_s_words() -> None:
    error = read_refusal(501, body("n > 1 is not supported here", "NotImplementedError")).as_error()
    assert (error.status, error.stable_code) == (400, "not_implemented_error")
    assert error.detail == "n > 1 is not supported here"


@pytest.mark.parametrize("text", [b"", b"<html>", b"[1]", b'{"error": 5}', b'{"detail": [{"msg": "x"}]}', b"\xff"])
def test_any_body_is_understood(text: bytes) -> None:
    assert read_refusal(400, text).as_error().detail


def test_misses_and_deaths_are_recognised() -> None:
    assert read_refusal(400, body("Cache miss for video at index 0 but data is not provided.")).cache_miss
    assert not read_refusal(400, body("the cache is a miss")).cache_miss
    assert read_refusal(500, body("EngineCore encountered an issue. See stack trace")).engine_dead
    assert not read_refusal(400, body("EngineCore encountered an issue.")).engine_dead
    assert read_refusal(429, body("full"), "7").retry_after_s == 7.0
    assert read_refusal(429, body("full"), "soon").retry_after_s is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot open /models/a b", "cannot open [path] b"),
        ("see https://10.1.2.3:80/x?y=1, or not", "see [address], or not"),
        ("connect to 127.0.0.1:3000 failed", "connect to [address] failed"),
        ("'/usr/lib/python3/x.py', line 3", "'[path]', line 3"),
        ("1/2 of and/or 16384 tokens (a/b)", "1/2 of and/or 16384 tokens (a/b)"),
        ("x" * 5000, "x" * 2000 + "…"),
    ],
)
def test_places_of_the_inside_are_taken_out(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_error_events_are_cleaned_and_keep_their_kind() -> None:
    event = b'data: {"error": {"message": "bad /etc/passwd", "type": "BadRequestError", "param": null, "code": 400}}'
    told = json.loads(clean_event(event).removeprefix(b"data: "))["error"]
    assert (told["type"], told["message"]) == ("invalid_request_error", "bad [path]")
    refusal = first_event_refusal(event + b"\n\ndata: [DONE]\n\n")
    assert refusal is not None
    assert refusal.status == 400
    assert first_event_refusal(b'data: {"id": 1, "choices": [{"delta": {"content": "{\\"error\\""}}]}\n\n') is None
    broken = first_event_refusal(b'data: {"error": cut')
    assert broken is not None
    assert broken.status == 500
