"""The way of a question, over stub replicas on loopback: answers, headers, retries, refusals, clients that leave."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from support.gateway import CHAT, about, data_url, events, soon, text, video, world
from support.stub_replica import breaks, dies, hangs, says, vllm_error

from cosmos3_serve.reasoner.gateway import upstream
from cosmos3_serve.reasoner.setup import MODEL_NAME, SECRET_HEADER


async def test_text_is_answered_whole_and_streamed(tmp_path: Path) -> None:
    async with world(tmp_path) as here, here.client() as http:
        answer = await http.post(CHAT, json=text())
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["message"]["content"].startswith("r")
        assert answer.headers["x-cosmos3-replica"] in ("replica-0", "replica-1")
        assert answer.headers["x-cosmos3-session"] == "none"
        assert "x-cosmos3-media" not in answer.headers
        assert answer.headers["x-request-id"]
        streamed = await http.post(CHAT, json=text(stream=True, stream_options={"include_usage": True}))
        assert streamed.headers["content-type"].startswith("text/event-stream")
        told = events(streamed.text)
        assert told[-1] == "[DONE]"
        assert told[-2]["usage"]["prompt_tokens"] == 12
        assert "".join(e["choices"][0]["delta"].get("content", "") for e in told[:-2]).endswith("word word ")


async def test_what_the_engine_offers_passes_and_what_is_ours_does_not(tmp_path: Path) -> None:
    sent = {
        "stop": ["x"], "seed": 7, "logprobs": True, "top_logprobs": 2, "max_completion_tokens": 9, "n": 1,
        "response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a+"}, "logit_bias": {"5": 1},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "chat_template_kwargs": {"enable_thinking": False},
    }  # fmt: skip
    ours = {"cosmos3": {"explain": False}, "session_id": "s", "store": False, "metadata": {"a": "b"}}
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        assert (await http.post(CHAT, json=text(**sent, **ours))).status_code == 200
        (body,) = here.replicas[0].asked
        assert {k: body[k] for k in sent} == sent
        assert not body.keys() & ours.keys()
        (headers,) = here.replicas[0].headers
        assert headers[SECRET_HEADER]
        assert "Authorization" not in headers, "a client's token stays with the gateway"


async def test_a_video_travels_once_per_replica_and_then_by_name(tmp_path: Path) -> None:
    async with world(tmp_path) as here, here.client() as http:
        told = [await http.post(CHAT, json=about(data_url(video()), f"question {i}")) for i in range(4)]
        assert [a.headers["x-cosmos3-media"] for a in told] == ["miss", "hit", "hit", "hit"]
        assert [a.headers["x-cosmos3-session"] for a in told] == ["new", "hit", "hit", "hit"]
        assert len({a.headers["x-cosmos3-replica"] for a in told}) == 1
        home = here.by_name(told[0].headers["x-cosmos3-replica"])
        assert len(home.encoded) == 1
        parts = [body["messages"][0]["content"][0] for body in home.asked]
        assert parts[0]["video_url"]["url"] == data_url(video())
        assert all(part["video_url"] is None for part in parts[1:])
        assert len({part["uuid"] for part in parts}) == 1


async def test_a_cache_miss_is_answered_with_the_bytes_and_is_no_retry(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        stub = here.replicas[0]
        await http.post(CHAT, json=about(data_url(video())))
        stub.held.clear()
        again = await http.post(CHAT, json=about(data_url(video()), "again"))
        assert again.status_code == 200
        assert again.headers["x-cosmos3-media"] == "miss"
        assert len(stub.asked) == 3
        assert here.front.router.counters.retries == 0
        assert (await http.post(CHAT, json=about(data_url(video())))).headers["x-cosmos3-media"] == "hit"


async def test_what_one_gateway_sent_the_other_only_names(tmp_path: Path) -> None:
    headers = {"Authorization": "Bearer token-of-one"}
    async with world(tmp_path, gateways=2) as here:
        one, two = (httpx.AsyncClient(base_url=g.url, headers=headers) for g in here.gateways)
        async with one, two:
            first = await one.post(CHAT, json=about(data_url(video())))
            home = here.by_name(first.headers["x-cosmos3-replica"])
            second = await two.post(CHAT, json=about(data_url(video()), "and now?"))
            assert second.headers["x-cosmos3-session"] == "hit"
            assert second.headers["x-cosmos3-media"] == "hit"
            assert home.asked[-1]["messages"][0]["content"][0]["video_url"] is None
            assert len(home.encoded) == 1
            home.held.clear()
            third = await one.post(CHAT, json=about(data_url(video()), "again"))
            assert (third.status_code, third.headers["x-cosmos3-media"]) == (200, "miss")
            # A new video in a session that has a home: one miss, then the bytes.
            told = await two.post(CHAT, json=about(data_url(video(1))), headers={"X-Session-ID": "s"})
            again = await two.post(CHAT, json=about(data_url(video(2))), headers={"X-Session-ID": "s"})
            assert (told.status_code, again.status_code) == (200, 200)
            assert again.headers["x-cosmos3-media"] == "miss"


@pytest.mark.parametrize("fails", [False, True])
async def test_ten_first_questions_at_once_carry_their_video_once(tmp_path: Path, fails: bool) -> None:
    loaded = asyncio.Event()

    async def loads(stub, request, body):  # type: ignore[no-untyped-def]
        await loaded.wait()
        return vllm_error(400, "too long") if fails else None

    async with world(tmp_path, replicas=1, slots=16) as here, here.client() as http:
        stub = here.replicas[0]
        stub.turns.append(loads)
        body = about(data_url(video()))
        carrier = asyncio.create_task(http.post(CHAT, json=body))
        await stub.until(lambda: len(stub.asked) == 1)
        others = [asyncio.create_task(http.post(CHAT, json=body)) for _ in range(9)]
        await stub.until(lambda: len(stub.asked) >= 10)  # they try by name while the video is being loaded
        assert stub.encoded == []
        loaded.set()
        assert (await carrier).status_code == (400 if fails else 200)
        assert [(await other).status_code for other in others] == [200] * 9
        assert len(stub.encoded) == 1, "the next one carries it where the first has failed"
        with_data = [b for b in stub.asked if b["messages"][0]["content"][0]["video_url"] is not None]
        assert len(with_data) == (2 if fails else 1)
        assert len(here.front.carriers) == 0
        assert here.front.router.counters.retries == 0


async def test_a_client_s_uuid_never_reaches_a_replica(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        for number in range(2):
            body = about(data_url(video(number)))
            body["messages"][0]["content"][0]["uuid"] = "same-for-both"
            assert (await http.post(CHAT, json=body)).status_code == 200
        stub = here.replicas[0]
        assert len(stub.encoded) == 2
        assert "same-for-both" not in stub.held
        assert sorted(v for v in stub.held.values()) == sorted(data_url(video(n)) for n in range(2))


async def test_options_that_change_tokens_are_another_item(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        for count in (2, 3, 8):
            body = about(data_url(video()), mm_processor_kwargs={"num_frames": count}, cosmos3={"explain": True})
            told = await http.post(CHAT, json=body)
            assert told.headers["x-cosmos3-media"] == "miss"
            assert len(told.json()["cosmos3"]["media"][0]["sampling"]["indices"]) == count
            sent = here.replicas[0].asked[-1]
            assert sent["media_io_kwargs"] == {"video": {"min_frames": count, "max_frames": count}}
            assert sent["mm_processor_kwargs"] == {"videos_kwargs": {"do_sample_frames": False}}
        body = about(data_url(video()), media_io_kwargs={"video": {"fps": 12}})
        assert (await http.post(CHAT, json=body)).headers["x-cosmos3-media"] == "hit", "the same eight frames"
        for fps in (0.1, 13):
            refused = await http.post(CHAT, json=about(data_url(video()), mm_processor_kwargs={"fps": fps}))
            error = refused.json()["error"]
            assert (refused.status_code, error["param"]) == (400, "mm_processor_kwargs.fps")
        refused = await http.post(CHAT, json=about(data_url(video()), mm_processor_kwargs={"patch_size": 1}))
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "media_option_invalid"


async def test_explain_tells_the_frames_that_were_used(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        body = about(data_url(video()), cosmos3={"explain": True})
        told = (await http.post(CHAT, json=body)).json()["cosmos3"]
        assert told["session"] == "new"
        (media,) = told["media"]
        assert media["sampling"]["indices"]
        assert media["sampling"]["tokens"] > 0
        assert "cosmos3" not in here.replicas[0].asked[0]
        streamed = events((await http.post(CHAT, json={**body, "stream": True})).text)
        assert streamed[0]["choices"] == []
        assert streamed[0]["cosmos3"]["session"] == "hit"
        refused = await http.post(CHAT, json=about(data_url(video()), cosmos3={"explian": True}))
        assert refused.json()["error"]["param"] == "cosmos3"


# ---- sessions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["X-Session-ID", "x-session-id", "x_session_id", "X-Dynamo-Session-ID"])
async def test_every_spelling_of_a_session_header_is_heard(tmp_path: Path, name: str) -> None:
    async with world(tmp_path) as here, here.client() as http:
        told = [await http.post(CHAT, json=text(), headers={name: "abc"}) for _ in range(3)]
        assert [a.headers["x-cosmos3-session"] for a in told] == ["new", "hit", "hit"]


async def test_bad_session_headers_are_refused(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        for headers in ([("X-Session-ID", "a"), ("X-Session-ID", "b")], [("X-Session-ID", "x" * 10_000)]):
            told = await http.post(CHAT, json=text(), headers=headers)
            assert told.status_code == 400
            assert told.json()["error"]["code"] == "invalid_session_key"
        empty = await http.post(CHAT, json=text(), headers={"X-Session-ID": ""})
        assert empty.headers["x-cosmos3-session"] == "none"
        odd = await http.post(CHAT, json=text(), headers=[(b"X-Session-ID", b"\xff\xfe")])
        assert odd.headers["x-cosmos3-session"] == "new"


async def test_a_session_field_behind_five_megabytes_counts(tmp_path: Path) -> None:
    big = about(data_url(video()), "word " * 400_000)
    raw = json.dumps(big)[:-1].encode() + b', "stop": ["' + b"x" * 3_500_000 + b'"], "session_id": "behind-it-all"}'
    assert len(raw) > 5_000_000
    async with world(tmp_path) as here, here.client() as http:
        first = await http.post(CHAT, content=raw)
        assert first.status_code == 200, first.text
        second = await http.post(CHAT, json=text(), headers={"X-Session-ID": "behind-it-all"})
        assert second.headers["x-cosmos3-session"] == "hit"
        assert second.headers["x-cosmos3-replica"] == first.headers["x-cosmos3-replica"]


async def test_round_robin_ignores_the_header(tmp_path: Path) -> None:
    async with world(tmp_path, routing="round-robin") as here, here.client() as http:
        told = [await http.post(CHAT, json=text(), headers={"X-Session-ID": "s"}) for _ in range(4)]
        assert {a.headers["x-cosmos3-session"] for a in told} == {"none"}
        assert len({a.headers["x-cosmos3-replica"] for a in told}) == 2


async def test_tenants_share_no_session(tmp_path: Path) -> None:
    async with world(tmp_path) as here, here.client() as one, here.client("token-of-two") as two:
        for http in (one, two):
            told = await http.post(CHAT, json=text(), headers={"X-Session-ID": "same"})
            assert told.headers["x-cosmos3-session"] == "new"


async def test_two_gateways_agree_on_fifty_sessions(tmp_path: Path) -> None:
    async with world(tmp_path, gateways=2, slots=64) as here:  # none is full, so none is answered away from home
        homes: list[dict[str, str]] = []
        for gateway in here.gateways:
            async with httpx.AsyncClient(
                base_url=gateway.url, headers={"Authorization": "Bearer token-of-one"}
            ) as http:
                told = await asyncio.gather(
                    *(http.post(CHAT, json=text(), headers={"X-Session-ID": f"s{n}"}) for n in range(50))
                )
                homes.append({f"s{n}": a.headers["x-cosmos3-replica"] for n, a in enumerate(told)})
        assert homes[0] == homes[1]
        assert len(set(homes[0].values())) == 2


# ---- replicas that fail ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_home_that_dies_before_the_first_token_costs_one_retry(tmp_path: Path, stream: bool) -> None:
    async with world(tmp_path) as here, here.client() as http:
        session = {"X-Session-ID": "s"}
        first = await http.post(CHAT, json=about(data_url(video())), headers=session)
        home = here.by_name(first.headers["x-cosmos3-replica"])
        home.turns.append(dies)
        told = await http.post(CHAT, json=about(data_url(video()), stream=stream), headers=session)
        assert told.status_code == 200
        assert told.headers["x-cosmos3-session"] == "moved"
        assert told.headers["x-cosmos3-replica"] != first.headers["x-cosmos3-replica"]
        assert here.front.router.counters.retries == 1


async def test_an_engine_that_died_under_a_server_that_lives_is_a_death(tmp_path: Path) -> None:
    dead = says(
        500, "EngineCore encountered an issue. See stack trace (above) for the root cause.", "InternalServerError"
    )
    async with world(tmp_path) as here, here.client() as http:
        session = {"X-Session-ID": "s"}
        first = await http.post(CHAT, json=text(), headers=session)
        here.by_name(first.headers["x-cosmos3-replica"]).turns.append(dead)
        told = await http.post(CHAT, json=text(), headers=session)
        assert (told.status_code, told.headers["x-cosmos3-session"]) == (200, "moved")


async def test_new_media_is_not_tried_on_a_second_replica(tmp_path: Path) -> None:
    async with world(tmp_path) as here, here.client() as http:
        for stub in here.replicas:
            stub.turns.append(dies)
        told = await http.post(CHAT, json=about(data_url(video())))
        assert told.status_code == 503
        assert told.json()["error"]["code"] == "replica_lost_on_media"
        assert int(told.headers["retry-after"]) >= 1
        assert sum(len(stub.turns) for stub in here.replicas) == 1


async def test_fifty_bad_requests_leave_every_replica_healthy(tmp_path: Path) -> None:
    async with world(tmp_path) as here, here.client() as http:
        for stub in here.replicas:
            stub.turns += [says(400, "max_tokens is too large: 9999", "BadRequestError")] * 50
        told = await asyncio.gather(*(http.post(CHAT, json=text(max_tokens=9_999)) for _ in range(50)))
        assert {a.status_code for a in told} == {400}
        assert told[0].json()["error"]["message"] == "max_tokens is too large: 9999"
        fleet = here.front.router.health.fleet(here.front.clock())
        assert {view.state.value for view in fleet.replicas.values()} == {"ready"}
        assert here.front.router.counters.retries == 0


async def test_a_replica_s_inside_is_not_told(tmp_path: Path) -> None:
    inside = "cannot open /models/secret/file.bin at http://127.0.0.1:31000/v1 (tcp://10.0.0.1:5)"
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        here.replicas[0].turns += [says(400, inside), says(500, inside, "InternalServerError")]
        for status in (400, 502):
            told = await http.post(CHAT, json=text())
            assert told.status_code == status
            assert not any(word in told.text for word in ("/models", "127.0.0.1", "10.0.0.1", "31000"))


async def test_a_stream_that_breaks_ends_with_an_error_event_and_done(tmp_path: Path) -> None:
    own = b'data: {"error": {"message": "boom in /usr/lib/engine.py", "type": "InternalServerError", "code": 500}}\n\n'
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        for number, turn in enumerate((breaks(None), breaks(own + b"data: [DONE]\n\n"), breaks(b""))):
            here.replicas[0].turns.append(turn)
            told = await http.post(CHAT, json=text(f"question {number}", stream=True))
            assert told.status_code == 200
            *_, error, done = events(told.text)
            assert done == "[DONE]"
            assert error["error"]["type"] == "server_error"
            assert set(error["error"]) >= {"message", "type", "param", "code"}
            assert "/usr" not in told.text
            await asyncio.sleep(0.7)  # the probe finds it alive again


async def test_an_error_event_before_the_first_token_is_a_status(tmp_path: Path) -> None:
    event = b'data: {"error": {"message": "no such thing", "type": "BadRequestError", "param": "x", "code": 400}}\n\n'

    async def turn(stub, request, body):  # type: ignore[no-untyped-def]
        from aiohttp import web

        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(event + b"data: [DONE]\n\n")
        await answer.write_eof()
        return answer

    async with world(tmp_path, replicas=1) as here, here.client() as http:
        here.replicas[0].turns.append(turn)
        told = await http.post(CHAT, json=text(stream=True))
        assert told.status_code == 400
        assert told.json()["error"]["param"] == "x"


async def test_a_replica_that_never_answers_costs_only_its_own_questions(tmp_path: Path) -> None:
    async with world(tmp_path, answer_timeout_s=4) as here, here.client() as http:
        mute = here.replicas[0]
        mute.turns += [hangs] * 2
        hung = [asyncio.create_task(http.post(CHAT, json=text())) for _ in range(3)]
        await mute.until(lambda: mute.running == 2)
        told = await asyncio.gather(*(http.post(CHAT, json=text()) for _ in range(6)))
        assert {a.status_code for a in told} == {200}
        assert mute.running == 2, "answered while the others still waited"
        slow = [a for a in await asyncio.gather(*hung) if a.status_code != 200]
        assert [(a.status_code, a.json()["error"]["code"]) for a in slow] == [(503, "replica_timeout")] * 2


async def test_an_answer_too_large_to_hold_is_refused_and_hurts_no_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream.Reply.whole, "__defaults__", (20_000,))
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        here.replicas[0].tokens = 10_000
        told = await http.post(CHAT, json=text())
        assert (told.status_code, told.json()["error"]["code"]) == (413, "answer_too_large")
        streamed = await http.post(CHAT, json=text(stream=True))
        assert events(streamed.text)[-1] == "[DONE]"
        fleet = here.front.router.health.fleet(here.front.clock())
        assert {view.state.value for view in fleet.replicas.values()} == {"ready"}
        assert here.front.router.counters.retries == 0


async def test_a_wordy_question_arrives_as_it_was(tmp_path: Path) -> None:
    words = "wörd " * 600_000
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        assert (await http.post(CHAT, json=text(words))).status_code == 200
        assert here.replicas[0].asked[0]["messages"][0]["content"] == words


# ---- clients that leave ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_takes_its_work_along(tmp_path: Path, stream: bool) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        stub = here.replicas[0]
        stub.gate.clear()
        asking = asyncio.create_task(http.post(CHAT, json=text(stream=stream), headers={"X-Session-ID": "s"}))
        await stub.until(lambda: stub.running == 1)
        asking.cancel()
        await stub.until(lambda: stub.running == 0 and stub.aborted == 1)
        async with asyncio.timeout(5):
            await here.front.idle.wait()
        ref = next(iter(here.front.members))
        await soon(lambda: here.front.router.health.load(ref, here.front.clock()) == 0)
        # A stream was accepted before its client left; a whole answer never was, and binds nothing.
        told = await http.get("/v1/sessions/explain", params={"key": "s"})
        assert (told.json()["home"] is not None) is stream
        stub.gate.set()
        assert (await http.post(CHAT, json=text())).status_code == 200


# ---- the waiting line -----------------------------------------------------------------------------------------------


async def test_sixty_four_questions_over_two_times_eight_slots_are_all_answered(tmp_path: Path) -> None:
    async with world(tmp_path) as here, here.client(limits=httpx.Limits(max_connections=100)) as http:
        told = await asyncio.gather(
            *(http.post(CHAT, json=text(), headers={"X-Session-ID": f"s{n % 16}"}) for n in range(64))
        )
        assert {a.status_code for a in told} == {200}
        assert max(stub.most_running for stub in here.replicas) <= 9


async def test_past_the_line_questions_are_refused_with_a_time(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1, slots=1, queue_limit=1) as here, here.client() as http:
        stub = here.replicas[0]
        stub.gate.clear()
        first = asyncio.create_task(http.post(CHAT, json=text()))
        await stub.until(lambda: stub.running == 1)
        second = asyncio.create_task(http.post(CHAT, json=text()))
        await soon(lambda: len(here.front.line) == 1)
        third = await http.post(CHAT, json=text())
        assert third.status_code == 429
        assert third.json()["error"]["code"] == "queue_full"
        assert int(third.headers["retry-after"]) >= 1
        stub.gate.set()
        assert [(await task).status_code for task in (first, second)] == [200, 200]


async def test_who_waits_too_long_is_told(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1, slots=1, queue_timeout_s=0.2) as here, here.client() as http:
        here.replicas[0].gate.clear()
        first = asyncio.create_task(http.post(CHAT, json=text()))
        await here.replicas[0].until(lambda: here.replicas[0].running == 1)
        assert (await http.post(CHAT, json=text())).status_code == 429
        here.replicas[0].gate.set()
        assert (await first).status_code == 200


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (b"{", 400, "invalid_json", None),
        (b"[]", 400, "invalid_json", ""),
        (b'{"messages": []}', 400, "invalid_request", "messages"),
        (b'{"model": "gpt-4", "messages": [{"role": "user", "content": "x"}]}', 404, "model_not_found", "model"),
        (b'{"messages": [{"role": "user", "content": "x"}], "stream": "yes"}', 400, "invalid_request", "stream"),
        (b'{"messages": [{"role": "user", "content": "x"}], "n": 65}', 400, "invalid_request", "n"),
        (b'{"messages": [{"role": "user", "content": "x"}], "session_id": 5}', 400, "invalid_request", "session_id"),
    ],
)
async def test_bad_bodies_never_reach_a_replica(
    tmp_path: Path, body: bytes, status: int, code: str, param: str | None
) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        told = await http.post(CHAT, content=body)
        error = told.json()["error"]
        assert (told.status_code, error["code"], error["param"] or None) == (status, code, param or None)
        assert here.replicas[0].asked == []


async def test_a_body_past_the_limit_is_refused_while_it_comes(tmp_path: Path) -> None:
    async def endless():  # type: ignore[no-untyped-def]
        for _ in range(64):
            yield b"x" * 65536

    async with world(tmp_path, replicas=1, max_body_bytes=1_000_000) as here, here.client() as http:
        announced = await http.post(CHAT, content=b"x" * 1_000_001)
        assert announced.status_code == 413
        assert "1000000" in announced.json()["error"]["message"]
        told = await http.post(CHAT, content=endless())
        assert (told.status_code, told.json()["error"]["code"]) == (413, "body_too_large")
        assert here.front.budget.held == 0


async def test_media_is_refused_with_its_part(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        for url, status in (("data:video/mp4;base64,AAAA", 415), ("https://127.0.0.1/x.mp4", 400), ("ftp://x/y", 400)):
            told = await http.post(CHAT, json=about(url))
            assert told.status_code == status, told.text
            assert told.json()["error"]["param"] == "messages[0].content[0]"
        assert here.replicas[0].asked == []


async def test_a_service_that_ends_answers_503(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        here.replicas[0].gate.clear()
        running = asyncio.create_task(http.post(CHAT, json=text()))
        await here.replicas[0].until(lambda: here.replicas[0].running == 1)
        await here.core.end()
        await soon(lambda: here.front.fleet.draining)
        told = await http.post(CHAT, json=text())
        assert (told.status_code, told.json()["error"]["code"]) == (503, "draining")
        here.replicas[0].gate.set()
        assert (await running).status_code == 200


def test_the_served_name_is_the_seed_s() -> None:
    assert MODEL_NAME == "nvidia/cosmos3-nano-reasoner"


async def test_gateways_agree_while_the_table_is_away_and_afterwards(tmp_path: Path) -> None:
    async with world(tmp_path, gateways=2) as here:

        async def homes() -> list[dict[int, str]]:
            found = []
            for gateway in here.gateways:
                headers = {"Authorization": "Bearer token-of-one"}
                async with httpx.AsyncClient(base_url=gateway.url, headers=headers) as http:
                    told = [await http.post(CHAT, json=text(), headers={"X-Session-ID": f"s{n}"}) for n in range(20)]
                found.append({n: a.headers["x-cosmos3-replica"] for n, a in enumerate(told)})
            return found

        here.fleet.away = True
        first, second = await homes()
        assert first == second
        here.fleet.away = False
        await soon(lambda: all(len(g.front.router.leases) == 20 for g in here.gateways))
        assert await homes() == [first, first]
