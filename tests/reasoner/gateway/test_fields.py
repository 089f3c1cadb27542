"""The table of fields, walked: what vLLM gets, what it never sees, and what a client is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params
from support.gateway import text, world

from cosmos3_serve.reasoner.gateway.endpoint import CHAT, COMPLETIONS, ENDPOINTS, RESPONSES, Endpoint
from cosmos3_serve.reasoner.gateway.fields import Role

OPENAI: dict[str, Any] = {
    CHAT.path: chat_create_params.CompletionCreateParamsBase,
    COMPLETIONS.path: completion_create_params.CompletionCreateParamsBase,
    RESPONSES.path: response_create_params.ResponseCreateParamsBase,
}
ASKED: dict[str, dict[str, Any]] = {
    CHAT.path: text(),
    COMPLETIONS.path: {"prompt": "x"},
    RESPONSES.path: {"input": "x"},
}
OK: dict[str, Any] = {
    "n": 2, "best_of": 1, "max_tokens": 5, "max_completion_tokens": 5, "max_output_tokens": 5, "stream": False,
    "stream_options": {"include_usage": True}, "tools": [{"type": "function", "name": "f", "function": {"name": "f"}}],
    "response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}, "text": {"verbosity": "medium"},
    "tool_choice": "auto",
}  # fmt: skip
TAKEN_OUT = {"cosmos3", "session_id", "best_of"}


def fields_of(endpoint: Endpoint, *roles: Role) -> dict[str, Any]:
    """Fields of these roles, each with a value that is taken."""
    found = {}
    for name, field in endpoint.fields.items():
        if field.role in roles and name not in ASKED[endpoint.path] and name not in ("model", *TAKEN_OUT):
            found[name] = field.values[0] if field.values is not None else OK.get(name, "some value")
    return found


def test_the_table_knows_every_field_of_openai_s_api() -> None:
    for endpoint in ENDPOINTS:
        known = set(OPENAI[endpoint.path].__annotations__) | {"stream"}
        assert known <= endpoint.fields.keys(), endpoint.path


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda e: e.path)
async def test_what_is_passed_arrives_and_what_has_no_effect_does_not(tmp_path: Path, endpoint: Endpoint) -> None:
    passed = fields_of(endpoint, Role.ENGINE, Role.GATEWAY)
    passed.pop("cache_salt")
    for name in ("mm_processor_kwargs", "media_io_kwargs"):  # for videos and pictures: see `test_chat`
        passed.pop(name, None)
    idle = fields_of(endpoint, Role.NO_EFFECT)
    assert passed and idle
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        told = await http.post(endpoint.path, json={**ASKED[endpoint.path], **passed, **idle, "session_id": "s"})
        assert told.status_code == 200, told.text
        (body,) = here.replicas[0].asked
        assert {name: body[name] for name in passed} == passed
        assert not body.keys() & (idle.keys() | TAKEN_OUT)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda e: e.path)
async def test_what_is_refused_is_named_with_a_remedy(tmp_path: Path, endpoint: Endpoint) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        for name, field in endpoint.fields.items():
            if field.role is not Role.REFUSED and field.values is None:
                continue
            for value in ("some value", None):
                told = await http.post(endpoint.path, json={**ASKED[endpoint.path], name: value})
                if value is None:
                    assert told.status_code == 200, f"{name}: null is left out"
                    continue
                error = told.json()["error"]
                assert (told.status_code, error["code"], error["param"]) == (400, "unsupported_field", name)
                assert error["remedy"]
        for name in ("max_token", "made_up", "ü"):
            told = await http.post(endpoint.path, json={**ASKED[endpoint.path], name: 1})
            error = told.json()["error"]
            assert (told.status_code, error["code"], error["param"]) == (400, "unknown_field", name)
        assert all(name not in body for body in here.replicas[0].asked for name in ("made_up", "max_token"))


async def test_a_slip_of_the_pen_is_told_the_right_name(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        told = await http.post(CHAT.path, json=text(max_completion_token=5))
        assert told.json()["error"]["remedy"] == "did you mean max_completion_tokens?"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT.path, {"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        (CHAT.path, {"stream_options": {"include_uses": True}}, "stream_options.include_uses"),
        (COMPLETIONS.path, {"best_of": 2}, "best_of"),
        (COMPLETIONS.path, {"prompt": [1, 2, 3]}, "prompt"),
        (COMPLETIONS.path, {"prompt": []}, "prompt"),
        (RESPONSES.path, {"tools": [{"type": "web_search"}]}, "tools[0].type"),
        (RESPONSES.path, {"text": {"verbosity": "low"}}, "text.verbosity"),
        (RESPONSES.path, {"cosmos3": {"explain": True}, "stream": True}, "cosmos3"),
        (RESPONSES.path, {"input": []}, "input"),
        (RESPONSES.path, {"input": {}}, "input"),
    ],
)  # fmt: skip
async def test_what_an_engine_would_drop_inside_a_field_is_refused(
    tmp_path: Path, path: str, fields: dict[str, Any], param: str
) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        told = await http.post(path, json={**ASKED[path], **fields})
        assert (told.status_code, told.json()["error"]["param"]) == (400, param)
        assert here.replicas[0].asked == []


async def test_tools_that_are_switched_off_are_refused_by_name(tmp_path: Path) -> None:
    tools = {CHAT.path: OK["tools"], RESPONSES.path: OK["tools"]}
    async with world(tmp_path, replicas=1, tool_parser="none") as here, here.client() as http:
        for path, value in tools.items():
            told = await http.post(path, json={**ASKED[path], "tools": value})
            error = told.json()["error"]
            assert (told.status_code, error["code"], error["param"]) == (400, "unsupported_field", "tools")
            assert (
                await http.post(path, json={**ASKED[path], "tools": value, "tool_choice": "none"})
            ).status_code == 200
            assert (await http.post(path, json={**ASKED[path], "tools": None})).status_code == 200
    own = {"tool_parser": "none", "vllm_args": ("--enable-auto-tool-choice", "--tool-call-parser=qwen3_coder")}
    (tmp_path / "own").mkdir()
    async with world(tmp_path / "own", replicas=1, **own) as here, here.client() as http:
        assert (await http.post(CHAT.path, json={**ASKED[CHAT.path], "tools": OK["tools"]})).status_code == 200


@pytest.mark.parametrize(
    ("choice", "pinned"),
    [
        ("auto", None),
        ("none", None),
        (None, None),
        ("required", True),
        ({"type": "function", "name": "f", "function": {"name": "f"}}, True),
    ],
)
async def test_a_demanded_function_is_strict_unless_it_says_otherwise(
    tmp_path: Path, choice: Any, pinned: bool | None
) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        for path in (CHAT.path, RESPONSES.path):
            for given in ({}, {"strict": None}, {"strict": False}):
                one = {"name": "f", **given}
                tool = {"type": "function", **one} if path == RESPONSES.path else {"type": "function", "function": one}
                body = {**ASKED[path], "tools": [tool], "tool_choice": choice}
                assert (await http.post(path, json=body)).status_code == 200
                (arrived,) = here.replicas[0].asked[-1]["tools"]
                wanted = given.get("strict") if given.get("strict") is not None else pinned
                assert (arrived if path == RESPONSES.path else arrived["function"]).get("strict") is wanted
        for broken in ([1, None, "x"], {}, "x", [{"function": 5}]):
            assert (
                await http.post(CHAT.path, json={**text(), "tools": broken, "tool_choice": "required"})
            ).status_code == 200
