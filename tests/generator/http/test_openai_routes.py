"""OpenAI's endpoints over the real ledger and queue: what is accepted, kept, shown, refused and removed."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.asgi import Exchange
from support.batches import make_front, until
from support.core import Core, MakeCore
from support.fake_engine import done, failed, write

from cosmos3_serve.contract.profile import FRAMEWORK_PROFILE
from cosmos3_serve.errors import SampleCode
from cosmos3_serve.generator.engines.job import EngineJob, EngineResult
from cosmos3_serve.generator.http.application import build_app
from cosmos3_serve.generator.http.front import Front
from cosmos3_serve.service.tokens import TokenBook

TOKEN, BOB = "right-token-123", "bobs-token-4567"
PNG = b"\x89PNG\r\n\x1a\n pixels"
BALL: dict[str, Any] = {"prompt": "a red ball", "num_inference_steps": 2}


def made_video(job: EngineJob) -> EngineResult:
    write(job, "vision.mp4", b"a clip of " + str(job.args.get("vision_path")).encode())
    return done(job, files=[f"{job.key}/vision.mp4"])


def as_front(core: Core, tmp_path: Path) -> Front:
    (tmp_path / "tokens").write_text(f"bob:{BOB}\n")
    front = make_front(None, TokenBook(TOKEN, tmp_path / "tokens"), max_body_bytes=20_000)
    front.batches = core.coordinator
    core.engine.script["video"] = [made_video]
    return front


@pytest.fixture
def front(core: Core, tmp_path: Path) -> Front:
    return as_front(core, tmp_path)


def client_of(front: Front, token: str = TOKEN) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=build_app(front), raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers, timeout=30)


@pytest.fixture
async def client(front: Front) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(front) as opened:
        yield opened


async def ended(client: httpx.AsyncClient, id: str) -> dict[str, Any]:
    for _ in range(500):
        video: dict[str, Any] = (await client.get(f"/v1/videos/{id}")).json()
        if video["status"] in ("completed", "failed"):
            return video
        await asyncio.sleep(0.01)
    raise AssertionError(video)


def error(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    found: dict[str, Any] = answer.json()["error"]
    assert {"message", "type", "param", "code"} <= set(found)
    return found


# ---- pictures and videos -------------------------------------------------------------------------------------------


async def test_a_picture_is_one_sample_of_the_same_ledger(client: httpx.AsyncClient, core: Core) -> None:
    answer = await client.post("/v1/images/generations", json={**BALL, "seed": 7, "size": "256x256"})
    assert answer.status_code == 200, answer.text
    [data] = answer.json()["data"]
    key = core.engine.calls[0][0]
    assert base64.b64decode(data["b64_json"]) == f"{key}:7".encode()
    assert core.engine.jobs[key].args["num_steps"] == 2
    linked = await client.post("/v1/images/generations", json={**BALL, "response_format": "url"})
    url = linked.json()["data"][0]["url"]
    assert url.startswith("http://test/v1/artifacts/image_") and (await client.get(url)).status_code == 200
    batches = (await client.get("/v1/batches")).json()["batches"]
    assert [b["request_id"][:6] for b in batches] == ["image_"] * 2


async def test_a_video_is_queued_polled_fetched_and_deleted(client: httpx.AsyncClient, core: Core) -> None:
    answer = await client.post("/v1/videos", json={**BALL, "size": "832x480", "seconds": "4", "fps": 10})
    made = answer.json()
    assert answer.status_code == 200 and made["object"] == "video" and made["status"] == "queued"
    assert (made["size"], made["prompt"], made["seconds"], made["progress"]) == ("832x480", "a red ball", "4.1", 0)
    video = await ended(client, made["id"])
    assert (video["status"], video["progress"], video["error"]) == ("completed", 100, None)
    assert video["expires_at"] > video["completed_at"] >= video["created_at"]
    content = await client.get(f"/v1/videos/{made['id']}/content")
    assert content.headers["content-type"] == "video/mp4" and content.content == b"a clip of None"
    gone = await client.delete(f"/v1/videos/{made['id']}")
    assert gone.json() == {"id": made["id"], "object": "video.deleted", "deleted": True}
    assert not (core.root / made["id"]).exists()
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        again = error(await client.request(method, f"/v1/videos/{made['id']}{path}"), 404)
        assert again["code"] == "batch_expired"
    assert (await client.get("/v1/videos")).json()["data"] == []


async def test_the_list_has_pages_and_only_videos(
    client: httpx.AsyncClient, front: Front, core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cosmos3_serve.generator.http.openai_routes.SCAN_PAGE", 2)
    ids = []
    for _ in range(5):
        ids.append((await client.post("/v1/videos", json=BALL)).json()["id"])
        await core.submit("a", id=f"other-{len(ids)}", tenant="default")
    seen: list[str] = []
    after = ""
    while True:
        page = (await client.get("/v1/videos", params={"limit": 2, **({"after": after} if after else {})})).json()
        seen += [video["id"] for video in page["data"]]
        after = page["last_id"]
        if not page["has_more"]:
            break
    assert sorted(seen) == sorted(ids)
    async with client_of(front, BOB) as bob:
        assert (await bob.get("/v1/videos")).json()["data"] == []
        assert error(await bob.get(f"/v1/videos/{ids[0]}"), 404)["code"] == "not_found"
        assert error(await bob.delete(f"/v1/videos/{ids[0]}"), 404)["code"] == "not_found"
    for query in ("limit=0", "limit=1000", "limit=x", "order=asc"):
        assert error(await client.get(f"/v1/videos?{query}"), 400)["param"] == query.partition("=")[0]
    assert error(await client.get("/v1/videos?after=unknown"), 404)
    assert error(await client.get("/v1/videos/other-1"), 404)["code"] == "not_found"


# ---- what comes along ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [True, False])
async def test_a_picture_that_comes_along_is_kept_read_and_removed_with_its_batch(
    form: bool, client: httpx.AsyncClient, core: Core
) -> None:
    if form:
        answer = await client.post(
            "/v1/videos",
            data={"prompt": "it moves", "seed": "3"},
            files={"input_reference": ("x.gif", PNG, "image/gif")},
        )
    else:
        url = "data:image/png;base64," + base64.b64encode(PNG).decode()
        answer = await client.post("/v1/videos", json={"prompt": "it moves", "input_reference": {"image_url": url}})
    made = answer.json()["id"]
    assert (await ended(client, made))["status"] == "completed"
    [kept] = (core.root / ".cosmos3" / "ledger" / made / "uploads").iterdir()
    assert kept.read_bytes() == PNG and kept.suffix == ".png"  # by content, whatever its name says
    assert core.engine.jobs[f"{made}/video"].args["vision_path"] == str(kept)
    response = (await client.get(f"/v1/batches/{made}/response")).json()
    assert response["outputs"][0]["args"]["vision_path"] == f"upload://{kept.name}"
    await client.delete(f"/v1/videos/{made}")
    assert not kept.exists()


async def test_an_upload_waits_over_a_restart(make_core: MakeCore, tmp_path: Path) -> None:
    core = await make_core()
    core.engine.script |= {name: ["hang"] for name in "abcd"}
    for wave in (1, 2):  # as many as run at once
        await core.submit(*"abcd", id=f"busy-{wave}")
        await until(lambda wave=wave: len(core.engine.calls) == wave)
    async with client_of(as_front(core, tmp_path)) as client:
        waits = await client.post("/v1/videos", data={"prompt": "it moves"}, files={"input_reference": ("x.png", PNG)})
        batch = core.coordinator._ledger.live(waits.json()["id"])
        await until(lambda: batch.seq == 3)  # accepted, staging, staged
    await core.coordinator.close()
    again = await make_core()
    async with client_of(as_front(again, tmp_path)) as client:
        video = await ended(client, waits.json()["id"])
        assert (video["error"], video["status"], video["prompt"]) == (None, "completed", "it moves")


async def test_no_batch_names_an_upload_of_its_own_or_of_another(client: httpx.AsyncClient, core: Core) -> None:
    answer = await client.post("/v1/videos", data={"prompt": "it moves"}, files={"input_reference": ("x.png", PNG)})
    [kept] = (core.root / ".cosmos3" / "ledger" / answer.json()["id"] / "uploads").iterdir()
    for uri in (f"upload://{kept.name}", "upload://../../x.png"):
        sample = {"name": "a", "prompt": "it moves", "vision_path": uri}
        refused = await client.post("/v1/batches", json={"samples": [sample]})
        assert refused.status_code == 400 and refused.json()["errors"][0]["field"] == "samples[0].vision_path"
        body = {"prompt": "it moves", "input_reference": uri}
        assert error(await client.post("/v1/videos", json=body), 400)["param"] == "input_reference"


# ---- waiting and leaving -------------------------------------------------------------------------------------------


async def test_sync_answers_with_the_clip_itself(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/videos/sync", json=BALL)
    assert answer.headers["content-type"] == "video/mp4" and answer.content == b"a clip of None"
    assert (await client.get(f"/v1/videos/{answer.headers['x-video-id']}")).json()["status"] == "completed"


@pytest.mark.parametrize("path", ["/v1/videos/sync", "/v1/images/generations"])
async def test_a_client_that_leaves_cancels_also_what_runs(path: str, front: Front, core: Core) -> None:
    core.engine.script |= {"video": ["slow"], "image": ["slow"]}
    core.engine.obeys_cancel = True
    headers = [(b"authorization", f"Bearer {TOKEN}".encode()), (b"content-type", b"application/json")]
    exchange = Exchange("POST", path, headers, [json.dumps(BALL).encode()])
    left = asyncio.Event()
    receive = exchange.receive

    async def staying() -> dict[str, Any]:
        if not exchange._body:
            await left.wait()
        return await receive()

    exchange.receive = staying  # type: ignore[method-assign]
    running = asyncio.create_task(exchange.run(build_app(front)))
    await until(lambda: core.engine.calls)
    assert core.engine.cancelled == []
    left.set()
    await running
    assert core.engine.cancelled == core.engine.calls[0]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (SampleCode.GUARDRAIL_BLOCKED, 400), (SampleCode.INPUT_INVALID, 400), (SampleCode.OUT_OF_MEMORY, 500),
        (SampleCode.ENGINE_STALLED, 503),
    ],
)  # fmt: skip
async def test_a_failed_sample_is_an_error_of_its_code(
    code: SampleCode, status: int, client: httpx.AsyncClient, core: Core
) -> None:
    core.engine.script |= {name: [lambda job: failed(job, code, "why it failed")] for name in ("video", "image")}
    for path in ("/v1/videos/sync", "/v1/images/generations"):
        found = error(await client.post(path, json=BALL), status)
        assert (found["code"], found["message"]) == (code.value, "why it failed")
    made = (await client.post("/v1/videos", json=BALL)).json()["id"]
    video = await ended(client, made)
    assert video["error"] == {"code": code.value, "message": "why it failed"}
    assert error(await client.get(f"/v1/videos/{made}/content"), status)["code"] == code.value


async def test_a_running_video_has_no_content_yet_and_is_cancelled_by_delete(
    client: httpx.AsyncClient, core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cosmos3_serve.generator.http.openai_routes.END_S", 0.05)
    core.engine.script["video"] = ["slow"]
    core.engine.obeys_cancel = True
    made = (await client.post("/v1/videos", json=BALL)).json()["id"]
    await until(lambda: core.engine.calls)
    answer = await client.get(f"/v1/videos/{made}/content")
    assert error(answer, 409)["code"] == "batch_not_ended" and "retry-after" in answer.headers
    assert error(await client.delete(f"/v1/videos/{made}"), 409)["code"] == "batch_not_ended"
    assert core.engine.cancelled == [f"{made}/video"]
    core.engine.gate.set()
    assert (await ended(client, made))["error"]["code"] == "cancelled"
    assert (await client.delete(f"/v1/videos/{made}")).json()["deleted"] is True


async def test_delete_waits_for_a_sample_that_stops_soon(client: httpx.AsyncClient, core: Core) -> None:
    core.engine.script["video"] = ["slow"]
    core.engine.obeys_cancel = True
    made = (await client.post("/v1/videos", json=BALL)).json()["id"]
    await until(lambda: core.engine.calls)
    deleting = asyncio.create_task(client.delete(f"/v1/videos/{made}"))
    await until(lambda: core.engine.cancelled)
    core.engine.gate.set()
    assert (await deleting).json()["deleted"] is True


# ---- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"), ({**BALL, "size": "1x1"}, "size"), ({**BALL, "num_inference_steps": 0}, "num_inference_steps"),
        ({**BALL, "guidance_scale": 99}, "guidance_scale"), ({**BALL, "seed": "x"}, "seed"), ({**BALL, "n": 2}, "n"),
        ({**BALL, "enable_sound": True}, "enable_sound"), ({**BALL, "generate_sound": True}, "enable_sound"),
        ({**BALL, "audio_reference": "s3://b/k.wav"}, "audio_reference"),
        ({**BALL, "input_reference": "s3://not/allowed.png"}, "input_reference"),
        ({**BALL, "input_reference": "data:image/png;base64,R0lGODlh"}, "input_reference"),
        ({**BALL, "fps": 0, "num_frames": 5}, "fps"),
    ],
)  # fmt: skip
async def test_refusals_name_the_field(body: dict[str, Any], param: str, client: httpx.AsyncClient, core: Core) -> None:
    for path in ("/v1/videos", "/v1/videos/sync"):
        found = error(await client.post(path, json=body), 400)
        assert found["param"] == param and found["type"] == "invalid_request_error" and param in found["message"]
    assert core.engine.calls == [] and (await client.get("/v1/batches")).json()["batches"] == []


async def test_the_framework_engine_is_asked_for_sound(make_core: MakeCore, tmp_path: Path) -> None:
    core = await make_core(profile=FRAMEWORK_PROFILE)
    front = as_front(core, tmp_path)
    front.profile = FRAMEWORK_PROFILE
    async with client_of(front) as client:
        answer = await client.post("/v1/videos", json={**BALL, "generate_sound": True})
        assert (await ended(client, answer.json()["id"]))["status"] == "completed", answer.text
    [job] = core.engine.jobs.values()
    assert job.args["enable_sound"] is True


async def test_every_failure_on_these_paths_has_openais_shape(front: Front, client: httpx.AsyncClient) -> None:
    assert error(await client.post("/v1/videos", json={**BALL, "model": "sora-2"}), 404)["code"] == "model_not_found"
    assert error(await client.post("/v1/videos", content=b"{"), 400)["code"] == "invalid_json"
    assert error(await client.post("/v1/videos", content=b"x" * 30_000), 413)["code"] == "body_too_large"
    assert error(await client.post("/v1/images/generations", data={"prompt": "a"}), 415)
    assert error(await client.put("/v1/videos", json={}), 405)
    assert error(await client.get("/v1/videos/video_none/content?variant=thumbnail"), 400)["param"] == "variant"
    assert error(await client.get("/v1/images/unknown"), 404)
    async with client_of(front, "wrong") as stranger:
        assert error(await stranger.post("/v1/videos", json=BALL), 401)["code"] == "invalid_api_key"
        assert "error" not in (await stranger.get("/v1/batches")).json()
    front.accepting = False
    assert error(await client.post("/v1/videos", json=BALL), 503)["type"] == "server_error"
    assert (await client.get("/v1/videosync")).json()["code"] == "not_found"  # not one of these paths
