"""Everything around the chat route: tokens on every path, files, models, sessions, readiness, metrics, logs."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support import clips
from support.asgi import Exchange
from support.gateway import CHAT, OTHER_TOKEN, TOKEN, about, data_url, soon, text, video, world
from support.s3 import LocalS3, keys_of
from support.stub_replica import says

from cosmos3_serve.reasoner.gateway.app import build_app, loggable
from cosmos3_serve.reasoner.gateway.endpoint import COMPLETIONS, RESPONSES
from cosmos3_serve.reasoner.setup import MODEL_NAME

PATHS = [
    CHAT, COMPLETIONS.path, RESPONSES.path, "/v1/responses/resp_1", "/v1/models", f"/v1/models/{MODEL_NAME}",
    "/v1/files", "/v1/files/file-1", "/v1/files/file-1/content", "/v1/sessions", "/v1/sessions/explain", "/health",
    "/ready", "/metrics", "/system-info", "/", "/docs", "/openapi.json", "/-/healthz", "/-/routes", "/load",
    "/version", "/tokenize", "/v1/messages", "/v1/embeddings", "/v1/completions/", "/nothing",
]  # fmt: skip
SERVED = frozenset(PATHS[:15])


async def test_every_path_wants_the_token_before_a_body_is_read(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1) as here:
        app = build_app(here.front)
        for path in PATHS:
            for method in ("GET", "POST", "DELETE", "OPTIONS"):
                headers = [(b"content-length", b"5"), (b"authorization", b"Bearer nope-nope-nope")]
                exchange = await Exchange(method, path, headers, [b"hello"]).run(app)
                assert exchange.status == 401, (method, path)
                error = json.loads(exchange.content)["error"]
                assert (error["code"], error["type"]) == ("invalid_api_key", "authentication_error")
                assert exchange.reads == 0


async def test_no_route_of_a_replica_or_of_serve_is_reachable(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        for path in PATHS:
            told = await http.get(path)
            if path not in SERVED:
                assert told.status_code == 404, path
                assert set(told.json()["error"]) >= {"message", "type", "param", "code"}
        for path in (CHAT, COMPLETIONS.path, RESPONSES.path):
            wrong = await http.get(path)
            assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")


async def test_a_safe_request_id_comes_back_and_another_is_replaced(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        for path, status in (("/health", 200), ("/nothing", 404)):
            told = await http.get(path, headers={"X-Request-ID": "mine-1"})
            assert (told.status_code, told.headers["x-request-id"]) == (status, "mine-1")
        told = await http.post(CHAT, json=text(), headers={"X-Request-ID": 'a b"c'})
        assert told.headers["x-request-id"] != 'a b"c'


# ---- models, sessions, readiness ------------------------------------------------------------------------------------


async def test_models_are_the_replica_s_without_its_places(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        (row,) = (await http.get("/v1/models")).json()["data"]
        assert (row["id"], row["max_model_len"], row["weights"]) == (MODEL_NAME, 16384, "random")
        assert row["root"] == "tiny"
        assert (await http.get(f"/v1/models/{MODEL_NAME}")).json() == row
        missing = await http.get("/v1/models/other")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_sessions_and_explain_show_digests_only(tmp_path: Path) -> None:
    async with world(tmp_path) as here, here.client() as http:
        told = await http.get("/v1/sessions/explain", params={"key": "my-session"})
        assert told.json()["outcome"] == "new"
        home = (await http.post(CHAT, json=text(), headers={"X-Session-ID": "my-session"})).headers["x-cosmos3-replica"]
        told = await http.get("/v1/sessions/explain", params={"key": "my-session"})
        assert (told.json()["outcome"], told.json()["home"]["id"]) == ("hit", home)
        by_header = await http.get("/v1/sessions/explain", headers={"X-Session-ID": "my-session"})
        assert by_header.json()["key"] == told.json()["key"]
        listed = (await http.get("/v1/sessions")).json()
        assert [row["replica"] for row in listed["data"]] == [home]
        assert told.json()["counters"][home]["new"] == 1
        assert listed["table"]["sessions"] == 1
        assert "my-session" not in told.text + json.dumps(listed)


async def test_ready_waits_for_a_canary_that_saw_a_video(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        told = await http.get("/ready")
        assert told.status_code == 200, told.text
        assert {c["name"] for c in told.json()["checks"]} >= {"registry", "replicas", "canary", "tokens", "accepting"}
        assert (told.json()["weights"], told.json()["payload_verified"]) == ("random", False)
        stub = await here.add_replica()
        stub.turns.append(says(500, "no decoder"))
        await here.seen()
        await soon(lambda: "canary failed" in here.gateways[0].upkeep.canary.verdict()[1])
        told = await http.get("/ready")
        assert told.status_code == 200, "one replica has passed"
        assert "replica-1" in next(c for c in told.json()["checks"] if c["name"] == "canary")["reason"]


async def test_without_a_replica_the_service_is_alive_and_not_ready(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        await here.core.leave(here.places.pop("r0"))
        await soon(lambda: not here.front.ready_members())
        assert (await http.get("/health")).status_code == 200
        told = await http.get("/ready")
        assert told.status_code == 503
        assert int(told.headers["retry-after"]) >= 1
        failing = {c["name"] for c in told.json()["checks"] if not c["ok"]}
        assert failing == {"replicas", "canary"}
        assert told.json()["error"]["code"] == "not_ready"
        asked = await http.post(CHAT, json=text())
        assert (asked.status_code, asked.json()["error"]["code"]) == (503, "no_replica")
        assert (await http.get("/v1/models")).json()["data"][0]["max_model_len"] == 16384


async def test_a_fleet_that_may_sleep_is_ready_without_a_replica_unless_none_can_start(tmp_path: Path) -> None:
    """The port stays open for the question that wakes it, and no alert fires meanwhile."""
    async with world(tmp_path, replicas=1, workers="0:2") as here, here.client() as http:
        await here.core.demand(0)
        await here.core.leave(here.places.pop("r0"))
        await soon(lambda: not here.front.members)
        assert (await http.get("/ready")).status_code == 200
        assert "cosmos3_reasoner_ready 1.0" in (await http.get("/metrics")).text
        asked = await http.post(CHAT, json=text())
        assert (asked.status_code, asked.json()["error"]["code"]) == (503, "no_replica")
        assert int(asked.headers["retry-after"]) >= 1
        assert here.front.asked_s < 60 and here.front.answers == 0
        await here.core.failed("replica", {"code": "model_refused"})
        await soon(lambda: here.front.fleet.failing)
        told = await http.get("/ready")
        assert told.status_code == 503
        assert [c["name"] for c in told.json()["checks"] if not c["ok"]] == ["replicas"]


async def test_the_load_of_a_gateway_counts_answers_in_flight_and_in_line(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1, slots=4) as here, here.client() as http:
        stub = here.replicas[0]
        stub.gate.clear()
        asked = [asyncio.create_task(http.post(CHAT, json=text(n=n))) for n in (4, 3, 1)]
        await soon(lambda: here.front.answers == 8)
        assert len(here.front.line) == 2
        stub.gate.set()
        assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}
        assert here.front.answers == 0


async def test_metrics_count_what_happened(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        for _ in range(2):
            await http.post(CHAT, json=about(data_url(video())))
        shown = (await http.get("/metrics")).text
        for line in (
            'cosmos3_reasoner_sessions_total{outcome="new",replica="replica-0"} 1.0',
            'cosmos3_reasoner_sessions_total{outcome="hit",replica="replica-0"} 1.0',
            'cosmos3_reasoner_media_total{held="miss"} 1.0',
            'cosmos3_reasoner_media_total{held="hit"} 1.0',
            'cosmos3_reasoner_replica_state{replica="replica-0",state="ready"} 1.0',
            "cosmos3_reasoner_waiting 0.0",
            "cosmos3_reasoner_first_byte_seconds_count 2.0",
        ):
            assert line in shown
        info = (await http.get("/system-info")).json()
        assert info["limits"]["max_body_bytes"] == 64 * 1024 * 1024
        assert "127.0.0.1" not in json.dumps(info)


# ---- files ----------------------------------------------------------------------------------------------------------


async def test_a_file_is_uploaded_once_and_used_by_its_id(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http, here.client(OTHER_TOKEN) as other:
        made = await http.post(
            "/v1/files", data={"purpose": "vision"}, files={"file": ("clip.mp4", video(), "video/mp4")}
        )
        assert made.status_code == 200, made.text
        record = made.json()
        assert (record["object"], record["bytes"], record["filename"], record["purpose"]) == (
            "file", len(video()), "clip.mp4", "vision",
        )  # fmt: skip
        told = await http.post(CHAT, json=about(f"file-id:{record['id']}"))
        assert told.status_code == 200, told.text
        (sent,) = here.replicas[0].asked
        assert sent["messages"][0]["content"][0]["video_url"]["url"] == data_url(video())
        # The same content as data is the same item.
        assert (await http.post(CHAT, json=about(data_url(video())))).headers["x-cosmos3-media"] == "hit"
        assert (await http.get(f"/v1/files/{record['id']}")).json() == record
        assert (await http.get(f"/v1/files/{record['id']}/content")).content == video()
        assert [f["id"] for f in (await http.get("/v1/files")).json()["data"]] == [record["id"]]
        for told in (
            await other.get(f"/v1/files/{record['id']}"),
            await other.post(CHAT, json=about(f"file-id:{record['id']}")),
        ):
            assert (told.status_code, told.json()["error"]["code"]) == (404, "file_not_found")
        assert (await other.get("/v1/files")).json()["data"] == []
        assert (await http.delete(f"/v1/files/{record['id']}")).json()["deleted"] is True
        assert (await http.get(f"/v1/files/{record['id']}")).status_code == 404


async def test_gateways_of_two_machines_share_files_through_a_bucket(
    s3_server: LocalS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two whole gateways, each with a disk of its own; the bucket is a real S3 API."""
    s3_server.create_bucket("shared")
    for name, value in s3_server.environ.items():
        monkeypatch.setenv(name, value)
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    async with (
        world(one, replicas=1, media_store="s3://shared/media") as here,
        world(two, replicas=1, media_store="s3://shared/media") as there,
        here.client() as mine,
        there.client() as also_mine,
        there.client(OTHER_TOKEN) as foreign,
    ):
        made = await mine.post("/v1/files", files={"file": ("clip.mp4", video(), "video/mp4")})
        assert made.status_code == 200, made.text
        record = made.json()
        assert (await also_mine.get("/v1/files")).json()["data"] == [record]
        told = await also_mine.post(CHAT, json=about(f"file-id:{record['id']}"))
        assert told.status_code == 200, told.text
        (sent,) = there.replicas[0].asked
        assert sent["messages"][0]["content"][0]["video_url"]["url"] == data_url(video())
        assert (await also_mine.get(f"/v1/files/{record['id']}/content")).content == video()
        told = await foreign.post(CHAT, json=about(f"file-id:{record['id']}"))
        assert (told.status_code, told.json()["error"]["code"]) == (404, "file_not_found")
        assert (await also_mine.delete(f"/v1/files/{record['id']}")).json()["deleted"] is True
        told = await mine.post(CHAT, json=about(f"file-id:{record['id']}"))
        assert (told.status_code, told.json()["error"]["code"]) == (404, "file_not_found")
        assert keys_of(s3_server.environ, "shared") == []


@pytest.mark.parametrize(
    ("form", "status", "code"),
    [
        ({"files": {"file": ("x.mp4", b"not a video at all", "video/mp4")}}, 400, "media_not_media"),
        ({"files": {"file": ("x.mp4", b"", "video/mp4")}}, 400, "media_empty"),
        ({"files": {"other": ("x.mp4", b"abc", "video/mp4")}}, 400, "multipart_invalid"),
        (
            {"data": {"purpose": "world-domination"}, "files": {"file": ("x", b"abc", "video/mp4")}},
            400,
            "invalid_request",
        ),
        ({"content": b"abc", "headers": {"content-type": "video/mp4"}}, 415, "multipart_expected"),
        (
            {"content": b"--b\r\nbroken", "headers": {"content-type": "multipart/form-data; boundary=b"}},
            400,
            "multipart_invalid",
        ),
    ],
)
async def test_bad_uploads_are_refused_and_leave_nothing(
    tmp_path: Path, form: dict[str, Any], status: int, code: str
) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        told = await http.post("/v1/files", **form)
        assert (told.status_code, told.json()["error"]["code"]) == (status, code)
        assert (await http.get("/v1/files")).json()["data"] == []


async def test_files_are_listed_by_purpose_and_order_and_expire_when_asked(tmp_path: Path) -> None:
    import openai

    async with world(tmp_path, replicas=1) as here, here.client() as http:
        client = openai.AsyncOpenAI(base_url=f"{here.url}/v1", api_key=TOKEN, max_retries=0)
        made = [
            await client.files.create(file=("a.mp4", video()), purpose=purpose)
            for purpose in ("vision", "batch", "vision")
        ]
        ids = [file.id for file in made]
        assert [f.id async for f in client.files.list(order="asc", limit=1)] == ids
        assert [f.id async for f in client.files.list(order="desc", limit=2)] == ids[::-1]
        assert [f.id async for f in client.files.list(purpose="batch")] == [ids[1]]
        assert [f.id async for f in client.files.list(purpose="vision", order="asc")] == [ids[0], ids[2]]
        soon = await client.files.create(
            file=("b.mp4", video()), purpose="vision", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        assert soon.expires_at is not None and soon.expires_at - soon.created_at == 3600
        late = await http.post(
            "/v1/files",
            files=[
                ("file", ("c.mp4", video(), "video/mp4")),
                ("purpose", (None, "user_data")),
                ("expires_after[seconds]", (None, "7200")),
            ],
        )
        told = late.json()
        assert (told["purpose"], told["expires_at"] - told["created_at"]) == ("user_data", 7200)
        assert (await http.get("/v1/files", params={"order": "newest"})).json()["error"]["param"] == "order"


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("expires_after[seconds]", "60"),
        ("expires_after[seconds]", "2592000"),
        ("expires_after[seconds]", "soon"),
        ("expires_after[anchor]", "last_used_at"),
        ("purpose", "world-domination"),
        ("expires_at", "1"),
    ],
)
async def test_a_field_that_cannot_be_kept_is_named_wherever_it_stands(
    tmp_path: Path, name: str, value: str, late: bool
) -> None:
    fields: list[Any] = [("file", ("c.mp4", video(), "video/mp4")), (name, (None, value))]
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        told = await http.post("/v1/files", files=fields if late else fields[::-1])
        assert (told.status_code, told.json()["error"]["param"]) == (400, name)
        assert (await http.get("/v1/files")).json()["data"] == []


async def test_an_upload_past_the_limit_is_refused_with_the_number(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1, max_media_bytes=100_000) as here, here.client() as http:
        told = await http.post("/v1/files", files={"file": ("x.mp4", b"x" * 200_000, "video/mp4")})
        assert told.status_code == 413
        assert "100000" in told.json()["error"]["message"]


async def test_an_image_is_a_file_too(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        made = await http.post("/v1/files", files={"file": ("p.png", clips.picture(), "image/png")})
        assert made.status_code == 200, made.text
        body = text()
        body["messages"][0]["content"] = [{"type": "image_url", "image_url": {"url": f"file-id:{made.json()['id']}"}}]
        assert (await http.post(CHAT, json=body)).headers["x-cosmos3-media"] == "miss"


# ---- the official client, unchanged ---------------------------------------------------------------------------------


async def test_the_openai_client_works_unchanged(tmp_path: Path) -> None:
    import openai  # a second of CPU, for this worker alone

    async with world(tmp_path, replicas=1) as here:
        client = openai.AsyncOpenAI(base_url=f"{here.url}/v1", api_key=TOKEN, max_retries=0)
        messages: Any = about(data_url(video()))["messages"]
        whole = await client.chat.completions.create(model=MODEL_NAME, messages=messages)
        assert whole.choices[0].message.content
        assert whole.usage is not None
        assert whole.usage.prompt_tokens == 12
        pieces = []
        async for chunk in await client.chat.completions.create(
            model=MODEL_NAME, messages=messages, stream=True, extra_body={"cosmos3": {"explain": True}}
        ):
            pieces += [choice.delta.content or "" for choice in chunk.choices]
        assert "".join(pieces).startswith("r0 ")
        assert [m.id async for m in client.models.list()] == [MODEL_NAME]
        file = await client.files.create(file=("a.mp4", video(1)), purpose="vision")
        assert [f.id async for f in client.files.list()] == [file.id]
        assert (await client.files.content(file.id)).content == video(1)
        assert (await client.files.delete(file.id)).deleted
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="gpt-4", messages=messages)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.AuthenticationError):
            await openai.AsyncOpenAI(base_url=f"{here.url}/v1", api_key="wrong-token").models.list()
        here.replicas[0].turns.append(says(400, "This model's maximum context length is 16384 tokens"))
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            await client.chat.completions.create(model=MODEL_NAME, messages=messages)


# ---- privacy --------------------------------------------------------------------------------------------------------


async def test_logs_hold_no_token_prompt_session_or_file_id(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async with world(tmp_path, replicas=1, log_level="debug") as here, here.client() as http:
        made = await http.post("/v1/files", files={"file": ("private-name.mp4", video(), "video/mp4")})
        file_id = made.json()["id"]
        await http.get(f"/v1/files/{file_id}")
        body = about(f"file-id:{file_id}", "the-secret-prompt")
        await http.post(CHAT, json=body, headers={"X-Session-ID": "the-session"})
        await http.get("/v1/sessions/explain", params={"key": "the-session"})
        here.replicas[0].turns.append(says(500, "the-engine-says"))
        await http.post(CHAT, json=body)
        await http.delete(f"/v1/files/{file_id}")
    written = "".join(capfd.readouterr())
    assert '"path": "/v1/files/[id]"' in written
    for secret in (TOKEN, "the-secret-prompt", "the-session", file_id, "private-name", "cluster-secret", "the-engine"):
        assert secret not in written


def test_only_ids_are_taken_out_of_a_path() -> None:
    assert loggable("/v1/files/file-1/content") == "/v1/files/[id]/content"
    assert loggable("/v1/files") == "/v1/files"
    assert loggable(CHAT) == CHAT


async def test_a_body_past_the_memory_budget_is_told_to_wait(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        here.front.budget.max_bytes = 10_000
        told = await http.post(CHAT, json=text("x" * 20_000))
        assert (told.status_code, told.json()["error"]["code"]) == (503, "gateway_memory_full")
        assert (await http.post(CHAT, json=text("x" * 9_000))).status_code == 200
        assert here.front.budget.held == 0
