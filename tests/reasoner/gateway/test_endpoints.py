"""/v1/completions and /v1/responses take the way of chat: the same media, sessions, limits and errors."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support import clips
from support.gateway import CHAT, OTHER_TOKEN, TOKEN, data_url, soon, text, world
from support.stub_replica import StubReplica, dies, says

from cosmos3_serve.reasoner.gateway.endpoint import COMPLETIONS, ENDPOINTS, RESPONSES
from cosmos3_serve.reasoner.setup import MODEL_NAME

WORDS, SAY = COMPLETIONS.path, RESPONSES.path


def picture(shade: int = 0) -> str:
    return data_url(clips.picture(size=(64 + 32 * shade, 64)), "image/png")


def shown(url: str, words: str = "What is this?", **fields: Any) -> dict[str, Any]:
    """A question about a picture, for /v1/responses."""
    parts = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": words}]
    return {"model": MODEL_NAME, "input": [{"role": "user", "content": parts}], **fields}


BODIES: dict[str, dict[str, Any]] = {
    CHAT: text(),
    WORDS: {"model": MODEL_NAME, "prompt": "Once upon a time"},
    SAY: {"model": MODEL_NAME, "input": "What is this?"},
}


# ---- the same way ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", BODIES)
async def test_every_endpoint_has_sessions_salts_and_the_secret(tmp_path: Path, path: str) -> None:
    async with world(tmp_path) as here, here.client() as http, here.client(OTHER_TOKEN) as other:
        told = [await http.post(path, json={**BODIES[path], "session_id": "s", "cache_salt": "mine"}) for _ in "ab"]
        assert [a.status_code for a in told] == [200, 200], told[0].text
        assert [a.headers["x-cosmos3-session"] for a in told] == ["new", "hit"]
        assert (await http.post(path, json=BODIES[path], headers={"X-Session-ID": "s"})).headers[
            "x-cosmos3-session"
        ] == "hit"
        await other.post(path, json=BODIES[path], headers={"X-Session-ID": "s"})
        asked = [body for stub in here.replicas for body in stub.asked]
        salts = {body["cache_salt"] for body in asked}
        assert len(asked) == 4 and len(salts) == 2 and "mine" not in salts
        assert all("session_id" not in body for body in asked)


@pytest.mark.parametrize("path", BODIES)
async def test_every_endpoint_streams_to_its_end(tmp_path: Path, path: str) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        told = await http.post(path, json={**BODIES[path], "stream": True})
        assert told.headers["content-type"].startswith("text/event-stream")
        assert '"error"' not in told.text
        last = "event: response.completed" if path == SAY else "data: [DONE]"
        assert told.text.rstrip().split("\n\n")[-1].startswith(last)


@pytest.mark.parametrize("path", BODIES)
async def test_a_death_before_the_first_token_costs_one_retry(tmp_path: Path, path: str) -> None:
    """For a stream of responses too, whose first events come before the engine has done anything."""
    died: list[str] = []

    async def one_dies(stub: StubReplica, request: Any, body: dict[str, Any]) -> None:
        if not died:
            died.append(stub.name)
            await dies(stub, request, body)

    async with world(tmp_path) as here, here.client() as http:
        body = {**BODIES[path], "stream": True}
        assert (await http.post(path, json=body)).status_code == 200, "the request is known to be harmless"
        for stub in here.replicas:
            stub.turns += [_goes_on, one_dies] if path == SAY else [one_dies]
        told = await http.post(path, json=body)
        assert (told.status_code, len(died)) == (200, 1), told.text
        assert '"error"' not in told.text
        assert here.front.router.counters.retries == 1


async def _goes_on(stub: StubReplica, request: Any, body: dict[str, Any]) -> None:
    """The next turn is for what comes after a stream's first events."""


@pytest.mark.parametrize("in_order", [False, True])
async def test_a_stream_of_responses_without_its_end_ends_with_an_error_event(tmp_path: Path, in_order: bool) -> None:
    async def half(stub: StubReplica, request: Any, body: dict[str, Any]) -> Any:
        from aiohttp import web

        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        await stub.typed(answer, "response.created", response={})
        await stub.typed(answer, "response.output_text.delta", delta="event: response.completed\n", item_id="m")
        await asyncio.sleep(0.05)
        if in_order:
            await answer.write_eof()
        else:
            request.transport.abort()
        return answer

    async with world(tmp_path, replicas=1) as here, here.client() as http:
        here.replicas[0].turns.append(half)
        told = await http.post(SAY, json={**BODIES[SAY], "stream": True})
        assert told.status_code == 200
        kind, data = told.text.rstrip().split("\n\n")[-1].split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert (kind, event["type"], event["code"]) == ("event: error", "error", "replica_lost")
        assert "[DONE]" not in told.text


async def test_an_error_event_of_a_replica_is_cleaned(tmp_path: Path) -> None:
    async def fails(stub: StubReplica, request: Any, body: dict[str, Any]) -> Any:
        from aiohttp import web

        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        await stub.typed(answer, "response.created", response={})
        await stub.typed(answer, "response.output_text.delta", delta="half", item_id="m")
        await stub.typed(answer, "error", code="500", message="broke in /models/secret-place/x", param=None)
        await answer.write_eof()
        return answer

    async with world(tmp_path, replicas=1) as here, here.client() as http:
        here.replicas[0].turns.append(fails)
        told = await http.post(SAY, json={**BODIES[SAY], "stream": True})
        assert "secret-place" not in told.text
        assert json.loads(told.text.rstrip().split("\ndata: ")[-1])["type"] == "error"


@pytest.mark.parametrize("path", BODIES)
async def test_a_refusal_of_the_replica_keeps_its_words(tmp_path: Path, path: str) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        here.replicas[0].turns.append(says(400, "temperature must be positive"))
        told = await http.post(path, json=BODIES[path])
        assert (told.status_code, told.json()["error"]["message"]) == (400, "temperature must be positive")


# ---- load -----------------------------------------------------------------------------------------------------------


async def test_prompts_times_n_are_what_a_question_weighs(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1, slots=8) as here, here.client() as http:
        stub = here.replicas[0]
        stub.gate.clear()
        first = asyncio.create_task(http.post(WORDS, json={"prompt": ["a", "b", "c"], "n": 2}))
        await stub.until(lambda: stub.running == 1)
        fits = asyncio.create_task(http.post(WORDS, json={"prompt": ["a", "b"]}))
        await stub.until(lambda: stub.running == 2)
        waits = asyncio.create_task(http.post(WORDS, json={"prompt": "a"}))
        await soon(lambda: len(here.front.line) == 1)
        stub.gate.set()
        assert [(await task).status_code for task in (first, fits, waits)] == [200] * 3
        told = await http.post(WORDS, json={"prompt": ["a"] * 33, "n": 2})
        assert (told.status_code, told.json()["error"]["param"]) == (400, "prompt")
        assert "66" in told.json()["error"]["message"]


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda e: e.path)
async def test_the_bound_of_an_answer_s_tokens_holds_on_every_endpoint(tmp_path: Path, endpoint: Any) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        for name in endpoint.limits:
            for value in (0, -1, 16385, 1.5, "9", True):
                told = await http.post(endpoint.path, json={**BODIES[endpoint.path], name: value})
                assert (told.status_code, told.json()["error"]["param"]) == (400, name), value
                assert "16384" in told.json()["error"]["message"]
            for value in (1, 16384, None):
                told = await http.post(endpoint.path, json={**BODIES[endpoint.path], name: value})
                assert told.status_code == 200, told.text


# ---- responses: media -----------------------------------------------------------------------------------------------


async def test_a_picture_of_responses_passes_the_gate_and_travels_once(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http, here.client(OTHER_TOKEN) as other:
        told = [await http.post(SAY, json=shown(picture(), f"question {n}")) for n in range(2)]
        assert [a.status_code for a in told] == [200, 200], told[0].text
        assert [a.headers["x-cosmos3-media"] for a in told] == ["miss", "hit"]
        assert [a.headers["x-cosmos3-session"] for a in told] == ["new", "hit"]
        first, second = (body["input"][0]["content"][0] for body in here.replicas[0].asked)
        assert first["image_url"] == picture() and second["image_url"] is None
        assert first["uuid"] == second["uuid"] and first["type"] == "input_image" and "detail" not in first
        assert (await other.post(SAY, json=shown(picture()))).headers["x-cosmos3-media"] == "miss"
        made = await http.post("/v1/files", files={"file": ("p.png", clips.picture(), "image/png")})
        body = shown("")
        body["input"][0]["content"][0] = {"type": "input_image", "file_id": made.json()["id"]}
        assert (await http.post(SAY, json=body)).status_code == 200


@pytest.mark.parametrize(
    ("item", "status", "code", "param"),
    [
        ({"role": "user", "content": [{"type": "input_video", "video_url": "https://x/y.mp4"}]}, 415,
         "media_type_unsupported", "input[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_file", "file_url": "https://x/y"}]}, 415,
         "media_type_unsupported", "input[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_text", "text": "x", "image_url": "https://x/y"}]}, 400,
         "media_part_invalid", "input[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_image"}]}, 400, "media_url_invalid", "input[0].content[0]"),
        ({"role": "user", "content": [{"type": ["input_image"]}]}, 400, "media_part_invalid", "input[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "ftp://x"}]}, 400, "media_url_invalid",
         "input[0].content[0]"),
        ({"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "https://x"}]},
         415, "media_type_unsupported", "input[0].output[0]"),
        ({"type": "computer_call_output", "call_id": "c", "output": {"image_url": "https://x"}}, 400,
         "input_item_unsupported", "input[0]"),
        ({"type": "item_reference", "id": "msg_1"}, 400, "input_item_unsupported", "input[0]"),
        ({"type": {}}, 400, "media_part_invalid", "input[0]"),
    ],
)  # fmt: skip
async def test_no_media_goes_around_the_gate(
    tmp_path: Path, item: dict[str, Any], status: int, code: str, param: str
) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        told = await http.post(SAY, json={"input": [item]})
        error = told.json()["error"]
        assert (told.status_code, error["code"], error["param"]) == (status, code, param)
        assert error.get("remedy") or code == "media_part_invalid"
        assert here.replicas[0].asked == []


async def test_a_tool_s_turns_pass_as_they_are(tmp_path: Path) -> None:
    turns = [
        {"role": "user", "content": "What is the weather?"},
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "sunny"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "sunny"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is sunny."}]},
    ]
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        assert (await http.post(SAY, json={"input": turns})).status_code == 200
        (body,) = here.replicas[0].asked
        assert body["input"] == turns and body["store"] is False


# ---- responses: without state ---------------------------------------------------------------------------------------


async def test_what_needs_stored_answers_is_refused_by_name(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        for method, path in (
            ("GET", "/v1/responses/resp_secret"), ("DELETE", "/v1/responses/resp_secret"),
            ("POST", "/v1/responses/resp_secret/cancel"), ("GET", "/v1/responses/resp_secret/input_items"),
        ):  # fmt: skip
            told = await http.request(method, path)
            assert (told.status_code, told.json()["error"]["code"]) == (404, "response_not_stored"), path
            assert "input" in told.json()["error"]["remedy"]
        assert (await http.post("/v1/responses/input_tokens", json=BODIES[SAY])).status_code == 405
        for field in ({"store": True}, {"previous_response_id": "r"}, {"background": True}, {"conversation": "c"}):
            told = await http.post(SAY, json={**BODIES[SAY], **field})
            assert (told.status_code, told.json()["error"]["code"]) == (400, "unsupported_field")
            assert told.json()["error"]["param"] == next(iter(field))
        absent = {"store": False, "previous_response_id": None, "background": False}
        assert (await http.post(SAY, json={**BODIES[SAY], **absent})).status_code == 200


async def test_the_openai_client_reads_completions_and_responses(tmp_path: Path) -> None:
    import openai  # a second of CPU, for this worker alone

    async with world(tmp_path, replicas=1) as here:
        client = openai.AsyncOpenAI(base_url=f"{here.url}/v1", api_key=TOKEN, max_retries=0)
        whole = await client.completions.create(model=MODEL_NAME, prompt=["a", "b"])
        assert len(whole.choices) == 2
        pieces = [c.choices[0].text async for c in await client.completions.create(
            model=MODEL_NAME, prompt="a", stream=True)]  # fmt: skip
        assert "".join(pieces).startswith("r0 ")
        said = await client.responses.create(model=MODEL_NAME, input="a")
        assert said.output_text.startswith("r0 ")
        async with client.responses.stream(model=MODEL_NAME, input="a") as stream:
            kinds = [event.type async for event in stream]
        assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
        with pytest.raises(openai.NotFoundError) as missing:
            await client.responses.retrieve("resp_1")
        assert missing.value.code == "response_not_stored"
