"""What users of OpenAI's API expect, through the official client, two gateways and real vLLM: tools, formats, logprobs,
choices, completions and responses. The weights are random: what an answer must be, guided decoding makes sure of.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import Any

import httpx
import openai
import pytest
from support import clips
from support.fleet import need_engine
from support.gateway import CHAT, data_url, text
from support.real_fleet import TOKENS, RealFleet, are_in_flight, held_up, until

from cosmos3_serve.reasoner.engine.interpreter import find_interpreter
from cosmos3_serve.reasoner.gateway.endpoint import CHAT as CHAT_ENDPOINT
from cosmos3_serve.reasoner.gateway.endpoint import COMPLETIONS, RESPONSES
from cosmos3_serve.reasoner.gateway.fields import Role
from cosmos3_serve.reasoner.setup import MODEL_NAME

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

COLOUR: dict[str, Any] = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green", "blue"]}, "moves": {"type": "boolean"}},
    "required": ["colour", "moves"],
    "additionalProperties": False,
}
PAINT = {"name": "paint", "description": "Paint the square.", "parameters": COLOUR}
STOP = {"name": "stop", "description": "Stop.", "parameters": {"type": "object", "properties": {}}}
TOOLS: Any = [{"type": "function", "function": one} for one in (PAINT, STOP)]
FLAT: Any = [{"type": "function", **PAINT}]
NAMED: Any = {"type": "function", "function": {"name": "paint"}}
SHAPE: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": COLOUR, "strict": True}}
ASKED: Any = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "Which colour?"}], "temperature": 0}


@pytest.fixture
def client(reasoner: RealFleet) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{reasoner.url}/v1", api_key=TOKENS["one"], max_retries=0, timeout=600)


def fits(said: str) -> None:
    """It is what the schema demands."""
    value = json.loads(said)
    assert value.keys() == {"colour", "moves"}
    assert value["colour"] in ("red", "green", "blue") and isinstance(value["moves"], bool)


# ---- tools ----------------------------------------------------------------------------------------------------------


async def test_a_demanded_tool_is_called_with_arguments_that_fit(client: openai.AsyncOpenAI) -> None:
    told = await client.chat.completions.create(
        **ASKED, tools=TOOLS[:1], tool_choice="required", max_completion_tokens=200
    )
    calls = told.choices[0].message.tool_calls or []
    assert calls and all(call.type == "function" and call.function.name == "paint" for call in calls)
    fits(calls[0].function.arguments)  # type: ignore[union-attr]
    told = await client.chat.completions.create(**ASKED, tools=TOOLS, tool_choice=NAMED, max_completion_tokens=200)
    (call,) = told.choices[0].message.tool_calls or []
    assert call.type == "function" and call.function.name == "paint"
    fits(call.function.arguments)


async def test_tool_calls_are_streamed(client: openai.AsyncOpenAI) -> None:
    name, arguments, ends = "", "", []
    async for chunk in await client.chat.completions.create(
        **ASKED, tools=TOOLS, tool_choice=NAMED, max_completion_tokens=200, stream=True
    ):
        for choice in chunk.choices:
            ends += [choice.finish_reason] if choice.finish_reason else []
            for call in choice.delta.tool_calls or []:
                assert call.index == 0 and call.function is not None
                name += call.function.name or ""
                arguments += call.function.arguments or ""
    assert name == "paint" and len(ends) == 1
    fits(arguments)


async def test_tools_may_be_offered_without_a_demand(client: openai.AsyncOpenAI) -> None:
    for choice in ({}, {"tool_choice": "auto"}, {"tool_choice": "none"}):
        told = await client.chat.completions.create(**ASKED, tools=TOOLS, max_completion_tokens=4, **choice)
        assert told.choices[0].finish_reason in ("length", "stop")
    with pytest.raises(openai.BadRequestError):
        unknown: Any = {"type": "function", "function": {"name": "nothing"}}
        await client.chat.completions.create(**ASKED, tools=TOOLS, tool_choice=unknown)


async def test_a_tool_s_answer_goes_back_to_the_model(client: openai.AsyncOpenAI) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "paint", "arguments": '{"colour": "red"}'}}
    turns: Any = [
        *ASKED["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "painted"},
    ]
    told = await client.chat.completions.create(
        **{**ASKED, "messages": turns}, tools=TOOLS, max_completion_tokens=4
    )  # fmt: skip
    assert told.usage is not None and told.usage.completion_tokens >= 1


# ---- formats, choices, probabilities --------------------------------------------------------------------------------


async def test_a_format_is_kept(reasoner: RealFleet, client: openai.AsyncOpenAI) -> None:
    told = await client.chat.completions.create(**ASKED, response_format=SHAPE, max_completion_tokens=200)
    fits(told.choices[0].message.content or "")
    async with reasoner.inside() as http:  # random words may never end: say which token is liked
        found = await http.post(
            f"{reasoner.replicas[0]['url']}/tokenize", json={"prompt": "}", "add_special_tokens": False}
        )
    end = str(found.json()["tokens"][-1])
    told = await client.chat.completions.create(
        **ASKED, response_format={"type": "json_object"}, logit_bias={end: 100}, max_completion_tokens=200
    )
    assert isinstance(json.loads(told.choices[0].message.content or ""), dict)


async def test_logprobs_choices_stop_and_usage(client: openai.AsyncOpenAI) -> None:
    told = await client.chat.completions.create(
        **{**ASKED, "temperature": 1}, n=2, logprobs=True, top_logprobs=3, max_completion_tokens=6, seed=7
    )
    assert [choice.index for choice in told.choices] == [0, 1]
    for choice in told.choices:
        assert choice.logprobs is not None and choice.logprobs.content
        assert all(len(token.top_logprobs) >= 3 and token.logprob <= 0 for token in choice.logprobs.content)
    asked = {**ASKED, "max_completion_tokens": 24}
    whole = (await client.chat.completions.create(**asked)).choices[0].message.content or ""
    mark = whole[len(whole) // 2 :][:2]
    assert mark
    cut = await client.chat.completions.create(**asked, stop=[mark])
    assert cut.choices[0].finish_reason == "stop"
    assert cut.choices[0].message.content == whole[: whole.index(mark)]
    usage, pieces = [], []
    async for chunk in await client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    ):
        usage += [chunk.usage] if chunk.usage else []
        pieces += [choice.delta.content or "" for choice in chunk.choices]
    assert "".join(pieces) == whole and len(usage) == 1
    assert usage[0].completion_tokens >= 1


# ---- completions and responses --------------------------------------------------------------------------------------


async def test_completions_answer_texts(client: openai.AsyncOpenAI) -> None:
    told = await client.completions.create(
        model=MODEL_NAME, prompt=["A red square", "A blue circle"], max_tokens=5, n=2, logprobs=2, seed=1, echo=True
    )
    assert [choice.index for choice in told.choices] == [0, 1, 2, 3]
    assert [choice.text.startswith("A red square") for choice in told.choices] == [True, True, False, False]
    assert told.choices[0].logprobs is not None
    asked: Any = {"model": MODEL_NAME, "prompt": "A red square", "max_tokens": 8, "temperature": 0}
    whole = await client.completions.create(**asked)
    pieces, usage = [], []
    async for chunk in await client.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        pieces += [choice.text for choice in chunk.choices]
        usage += [chunk.usage] if chunk.usage else []
    assert "".join(pieces) == whole.choices[0].text
    assert len(usage) == 1
    with pytest.raises(openai.BadRequestError) as refused:
        await client.completions.create(**asked, suffix="end")
    assert "suffix" in str(refused.value)


async def test_a_tenant_s_prompts_of_completions_and_responses_are_its_own(reasoner: RealFleet) -> None:
    secret = "The account 4711 0815 is to be paid nine million before Monday. " * 12
    bodies: dict[str, dict[str, Any]] = {
        COMPLETIONS.path: {"prompt": secret, "max_tokens": 1},
        RESPONSES.path: {"input": secret, "max_output_tokens": 1},
    }
    for path, body in bodies.items():
        seen = []
        for tenant in ("one", "one", "two"):
            async with reasoner.client(tenant) as http:
                told = await http.post(path, json=body, headers={"X-Session-ID": "own"})
                assert told.status_code == 200, told.text
            usage = told.json()["usage"]
            details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
            seen.append(details.get("cached_tokens") or 0)
        assert seen[0] == seen[2] == 0 and seen[1] > 50, path


async def test_responses_answer_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    asked: Any = {"model": MODEL_NAME, "input": "Which colour?", "temperature": 0, "max_output_tokens": 8}
    whole = await client.responses.create(**asked, instructions="Be short.", store=False)
    assert whole.output_text and whole.usage is not None and whole.usage.output_tokens >= 1
    async with client.responses.stream(**asked, instructions="Be short.") as stream:
        kinds = [event.type async for event in stream]
        told = await stream.get_final_response()
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    assert told.output_text == whole.output_text
    shaped = await client.responses.create(
        **{**asked, "max_output_tokens": 200},
        text={"format": {"type": "json_schema", "name": "answer", "schema": COLOUR, "strict": True}},
    )
    fits(shaped.output_text)
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(**asked, previous_response_id=whole.id)
    assert refused.value.code == "unsupported_field"
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(whole.id)


async def test_responses_call_tools(client: openai.AsyncOpenAI) -> None:
    asked: Any = {"model": MODEL_NAME, "input": "Which colour?", "temperature": 0, "max_output_tokens": 200}
    told = await client.responses.create(**asked, tools=FLAT, tool_choice="required")
    calls = [item for item in told.output if item.type == "function_call"]
    assert calls and calls[0].name == "paint"
    fits(calls[0].arguments)
    turns: Any = [
        {"role": "user", "content": "Which colour?"},
        {"type": "function_call", "call_id": calls[0].call_id, "name": "paint", "arguments": calls[0].arguments},
        {"type": "function_call_output", "call_id": calls[0].call_id, "output": "painted"},
    ]
    again = await client.responses.create(**{**asked, "input": turns, "max_output_tokens": 4}, tools=FLAT)
    assert again.usage is not None


async def test_responses_see_a_picture_once(reasoner: RealFleet) -> None:
    url = data_url(clips.picture(size=(160, 96)), "image/png")
    parts = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "What is this?"}]
    body = {"input": [{"role": "user", "content": parts}], "max_output_tokens": 1}
    before = await reasoner.processed()
    async with reasoner.client() as http:
        told = [await http.post(RESPONSES.path, json=body, headers={"X-Session-ID": "pictures"}) for _ in range(2)]
    assert [answer.status_code for answer in told] == [200, 200], told[0].text
    assert told[1].headers["x-cosmos3-media"] == "hit"
    assert await reasoner.processed() - before == 1
    assert told[0].json()["usage"]["input_tokens"] > 10


# ---- load -----------------------------------------------------------------------------------------------------------


async def test_many_choices_of_one_client_stop_nobody_else(reasoner: RealFleet) -> None:
    """Of three questions with more choices than a replica answers at once, two fill the fleet. The third waits in its
    gateway, or every engine refuses it, which closes none of them for the plain ones of another tenant."""
    many = {"max_completion_tokens": 24, "ignore_eos": True, "temperature": 1}
    await reasoner.idle()
    async with reasoner.client() as greedy, reasoner.client("two") as other:

        def plain() -> list[asyncio.Task[httpx.Response]]:
            bodies = [text(f"plain {number}", max_completion_tokens=1) for number in range(3)]
            return [asyncio.create_task(other.post(CHAT, json=body)) for body in bodies]

        with held_up(reasoner.engine("replica-0")), held_up(reasoner.engine("replica-1")):
            wide = [
                asyncio.create_task(
                    greedy.post(CHAT, json=text("wide", n=24, **many), headers={"X-Session-ID": f"wide-{number}"})
                )
                for number in range(3)
            ]
            await until(lambda: are_in_flight(greedy, 2), 30)
            asked = plain()
            await asyncio.sleep(1)
            assert not any(task.done() for task in asked)
        async with asyncio.timeout(200):  # far below what a question may wait in its gateway
            answers = await asyncio.gather(*asked)
        assert [answer.status_code for answer in answers] == [200] * 3
        told = await asyncio.gather(*wide)
        assert all(len(answer.json()["choices"]) == 24 for answer in told if answer.status_code == 200)
        refused = [answer.json()["error"]["code"] for answer in told if answer.status_code != 200]
        assert refused in ([], ["fleet_saturated"])
        # More choices than an engine's own queue holds.
        wider, *asked = asyncio.create_task(greedy.post(CHAT, json=text("wider", n=40, **many))), *plain()
        async with asyncio.timeout(200):
            answers = await asyncio.gather(*asked)
        assert [answer.status_code for answer in answers] == [200] * 3
        answer = await wider
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "fleet_saturated")


# ---- the table and the engine ---------------------------------------------------------------------------------------


def test_the_table_of_fields_is_the_installed_vllm_s() -> None:
    """Every field of vLLM's has a row, and nothing is called vLLM's that it does not know."""
    need_engine()
    code = (
        "import json\n"
        "from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest as a\n"
        "from vllm.entrypoints.openai.completion.protocol import CompletionRequest as b\n"
        "from vllm.entrypoints.openai.responses.protocol import ResponsesRequest as c\n"
        "print('FIELDS', json.dumps([list(t.model_fields) for t in (a, b, c)]))"
    )
    python = str(find_interpreter(None).python)
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FIELDS ")]
    for endpoint, names in zip((CHAT_ENDPOINT, COMPLETIONS, RESPONSES), json.loads(line[7:]), strict=True):
        assert set(names) <= endpoint.fields.keys(), endpoint.path
        theirs = {name for name, field in endpoint.fields.items() if field.role is Role.ENGINE}
        assert theirs <= set(names), endpoint.path
