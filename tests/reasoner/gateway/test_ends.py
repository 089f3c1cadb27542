"""How an answer ends when its engine, its replica or the gateway ends before it: whole, or a typed error."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.gateway import CHAT, World, about, data_url, events, soon, text, video, world
from support.stub_replica import StubReplica

from cosmos3_serve.reasoner.fleet.replicas import ReplicaState
from cosmos3_serve.reasoner.gateway.event_stream import aborted


async def gives_up(stub: StubReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """As vLLM ends answers when it is told to end: 200, and a reason to finish."""
    if not body.get("stream"):
        whole = stub._whole(body)
        whole["choices"][0]["finish_reason"] = "abort"
        return web.json_response(text=json.dumps(whole, separators=(",", ":")))
    answer = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
    await answer.prepare(request)
    for delta in ({"role": "assistant", "content": ""}, {"content": "half "}):
        await stub.event(answer, delta)
        await asyncio.sleep(0.02)
    await stub.event(answer, {}, finish_reason="abort")
    await answer.write(b"data: [DONE]\n\n")
    await answer.write_eof()
    return answer


def test_an_answer_about_aborts_is_not_aborted() -> None:
    assert aborted(b'{"choices":[{"index":0,"finish_reason":"abort"}]}')
    assert aborted(b'{"finish_reason": "abort"}')
    said = json.dumps({"content": 'it says "finish_reason":"abort" there', "finish_reason": "stop"})
    assert not aborted(said.encode())


@pytest.mark.parametrize("media", [False, True])
async def test_a_whole_answer_that_an_engine_gave_up_is_asked_for_again(tmp_path: Path, media: bool) -> None:
    async with world(tmp_path) as here, here.client() as http:
        for stub in here.replicas:
            stub.turns = [gives_up] if stub is here.replicas[0] else []
        body = about(data_url(video())) if media else text()
        told = [await http.post(CHAT, json=body) for _ in range(2)]
        assert [(t.status_code, t.json()["choices"][0]["finish_reason"]) for t in told] == [(200, "stop")] * 2
        assert here.front.router.counters.retries == 1
        assert not here.front.router.suspects._suspects


async def test_where_every_engine_ends_the_answer_is_a_typed_error(tmp_path: Path) -> None:
    async with world(tmp_path) as here, here.client() as http:
        for stub in here.replicas:
            stub.turns = [gives_up] * 2
        told = await http.post(CHAT, json=text())
        assert (told.status_code, told.json()["error"]["code"]) == (503, "replica_lost")
        assert "retry-after" in told.headers


async def test_a_stream_that_an_engine_gave_up_ends_with_an_error(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        here.replicas[0].turns = [gives_up]
        told = await http.post(CHAT, json=text(stream=True))
        assert "abort" not in told.text
        *pieces, error, done = events(told.text)
        assert (error["error"]["code"], done) == ("replica_lost", "[DONE]")
        assert "".join(p["choices"][0]["delta"].get("content", "") for p in pieces) == "half "


async def _waiting(here: World, http: Any) -> list[asyncio.Task[Any]]:
    """A stream that has begun, a whole answer under way, and a question in the line."""

    async def slow(stub: StubReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await answer.prepare(request)
        await stub.event(answer, {"content": "half "})
        await asyncio.Event().wait()
        return answer

    async def never(stub: StubReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    stub = here.replicas[0]
    stub.turns = [slow]
    tasks = [asyncio.create_task(http.post(CHAT, json=text(stream=True)))]
    await stub.until(lambda: stub.running == 1)
    stub.turns = [never]
    tasks.append(asyncio.create_task(http.post(CHAT, json=text())))
    await stub.until(lambda: stub.running == 2)
    tasks.append(asyncio.create_task(http.post(CHAT, json=text("in line"))))
    await soon(lambda: len(here.front.line) == 1)
    return tasks


async def test_what_a_drain_does_not_see_end_is_told_so(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1, slots=2) as here, here.client() as http:
        tasks = await _waiting(here, http)
        here.front.closing = True
        here.front.cut()
        stream, whole, line = await asyncio.gather(*tasks)
        *_, error, done = events(stream.text)
        assert (stream.status_code, error["error"]["code"], done) == (200, "draining", "[DONE]")
        for told in (whole, line):
            assert (told.status_code, told.json()["error"]["code"]) == (503, "draining")
            assert "retry-after" in told.headers
        async with asyncio.timeout(5):
            await here.front.idle.wait()
        await here.replicas[0].until(lambda: here.replicas[0].running == 0)


async def test_an_answer_cut_with_a_drained_replica_is_asked_for_again_and_suspected_of_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as here, here.client() as http:

        async def never(stub: StubReplica, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            await asyncio.Event().wait()
            raise AssertionError

        for stub in here.replicas:
            stub.turns = [never]
        asking = asyncio.create_task(http.post(CHAT, json=text("unseen")))
        await soon(lambda: sum(stub.running for stub in here.replicas) == 1)
        (busy,) = [stub for stub in here.replicas if stub.running]
        for stub in here.replicas:
            stub.turns = []
        place = here.places[busy.name]
        await here.core.drain(place)
        health = here.front.router.health
        await soon(lambda: health.state(place, 0) is ReplicaState.DRAINING)
        del here.places[busy.name]
        await here.core.leave(place)
        told = await asking
        assert told.status_code == 200
        assert not here.front.router.suspects._suspects
