"""A replica answers 5xx: the log says why without the client's words, and who is told to send it again."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import structlog
from support.gateway import CHAT, OTHER_TOKEN, events, soon, text, world
from support.stub_replica import says

from cosmos3_serve.reasoner.gateway.failed_requests import FailedRequests, loggable


def body(words: str, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": words}], **fields}


@pytest.mark.parametrize(
    ("message", "words", "shown"),
    [
        ("CUDA error: an illegal memory access", "What is this?", "CUDA error: an illegal memory access"),
        ("cannot parse purple elephant here", "the Purple elephant", "cannot parse … here"),
        ("bad value 'quoted by the engine'", "x", "bad value …"),
        ('bad value "quoted', "x", "bad value …"),
        ("unexpected {'a': [1, 2]} in input", "x", "unexpected … in input"),
        ("无法解析 at index 3", "x", "… at index 3"),
        ("token 8812 is out of range", "8812", "token … is out of range"),
        ("failed over swordfish", "unspaced,swordfish!", "failed over …"),
        ("first\nTraceback: more", "x", "first"),
        ("y" * 900, "x", "y" * 300),
    ],
)
def test_a_reason_holds_nothing_that_the_request_said(message: str, words: str, shown: str) -> None:
    assert loggable(message, body(words)) == shown


def test_fields_of_tools_and_schemas_are_the_client_s_words_too() -> None:
    schema = {"type": "object", "properties": {"salary": {"const": "topsecret"}}}
    asked = body("x", response_format={"type": "json_schema", "json_schema": {"name": "payroll", "schema": schema}})
    assert loggable("salary topsecret payroll failed in the content of role user", asked) == (
        "… failed in the content of role user"
    )


def test_the_request_is_the_cause_once_it_failed_before_and_a_well_replica_fails() -> None:
    failed = FailedRequests(max_items=2)
    assert not failed.on_failed("t", "a", well=True)
    assert not failed.on_failed("t", "a", well=False), "that replica is being examined"
    assert failed.on_failed("t", "a", well=True)
    assert not failed.on_failed("other", "a", well=True)
    failed.on_completed("t", "a")
    assert not failed.on_failed("t", "a", well=True)
    for digest in "bcd":
        failed.on_failed("t", digest, well=True)
    assert len(failed._failed) == 2
    assert not failed.on_failed("t", "a", well=True), "forgotten"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_log_says_why_and_only_one_more_try_is_advised(tmp_path: Path, stream: bool) -> None:
    broken = says(500, "Grammar for swordfish failed: out of states", "InternalServerError")
    async with world(tmp_path, log_level="warning") as here, here.client() as http, here.client(OTHER_TOKEN) as other:
        out = io.StringIO()
        structlog.configure(logger_factory=structlog.WriteLoggerFactory(file=out), cache_logger_on_first_use=False)
        for stub in here.replicas:
            stub.turns = [broken]
        asked = text("swordfish", stream=stream)
        first = await http.post(CHAT, json=asked)
        assert (first.status_code, first.json()["error"]["code"]) == (502, "replica_failed")
        assert "once" in first.json()["error"]["remedy"]
        again = await http.post(CHAT, json=asked)
        assert (again.status_code, again.json()["error"]["code"]) == (422, "request_fails")
        assert "send" not in again.json()["error"]["remedy"]
        assert "retry-after" not in again.headers
        lines = [json.loads(line) for line in out.getvalue().splitlines()]
        told = [line for line in lines if line["event"] == "replica_failed"]
        assert [(t["status"], t["type"]) for t in told] == [(500, "internal_server_error")] * 2
        assert {t["reason"] for t in told} == {"Grammar for … failed: out of states"}
        assert "swordfish" not in out.getvalue()
        # Another tenant's failure has nothing to do with it.
        router, clock = here.front.router, here.front.clock
        await soon(lambda: not any(view.examined for view in router.health.fleet(clock()).replicas.values()))
        for stub in here.replicas:
            stub.turns = [broken]
        assert (await other.post(CHAT, json=asked)).status_code == 502
        for stub in here.replicas:
            stub.turns = []
        answer = await http.post(CHAT, json=asked)
        assert answer.status_code == 200
        assert not stream or events(answer.text)[-1] == "[DONE]"
