"""The generator's HTTP table, against a coordinator that does what the test says."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.asgi import Exchange
from support.batches import FakeDesk, make_front, until

from cosmos3_serve.errors import Conflict, DeadlineUnreachable, QueueFull, StorageAuthorizationError
from cosmos3_serve.generator.http.application import build_app
from cosmos3_serve.generator.http.front import Front
from cosmos3_serve.service.tokens import TokenBook

TOKEN, BOB = "right-token-123", "bobs-token-4567"
AUTH = {"Authorization": f"Bearer {TOKEN}"}
SAMPLE = {"name": "a", "prompt": "a red ball", "num_frames": 1}


@pytest.fixture
def batches() -> FakeDesk:
    return FakeDesk()


@pytest.fixture
def front(batches: FakeDesk, tmp_path: Path) -> Front:
    (tmp_path / "tokens").write_text(f"bob:{BOB}\n")
    return make_front(batches, TokenBook(TOKEN, tmp_path / "tokens"), max_body_bytes=20_000)


@pytest.fixture
def client(front: Front) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=build_app(front), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test", headers=AUTH, timeout=10)


def body(request_id: str = "", **sample: Any) -> dict[str, Any]:
    return {"samples": [SAMPLE | sample], "model": "Cosmos3-Nano", "request_id": request_id}


# ---- about the service ---------------------------------------------------------------------------------------------


async def test_health_and_models_have_the_baselines_bodies(client: httpx.AsyncClient) -> None:
    assert (await client.get("/health")).json() == {"status": "ok", "backend": "diffusers-ray-serve"}
    assert (await client.get("/models")).json() == ["Cosmos3-Nano"]
    assert (await client.head("/health")).status_code == 200
    assert (await client.get("/system-info")).json()["ray_cluster_resources"] == {"CPU": 2.0}


async def test_ready_is_503_with_every_reason_until_every_check_holds(client: httpx.AsyncClient, front: Front) -> None:
    canary = [(False, "the canary has not run yet")]
    front.readiness.add("application", lambda: (True, "RUNNING"))
    front.readiness.add("canary", lambda: canary[0])
    answer = await client.get("/ready")
    problem = answer.json()
    assert answer.status_code == 503 and problem["detail"] == "model deployment is not ready"
    assert [(c["name"], c["ok"]) for c in problem["checks"]] == [("application", True), ("canary", False)]
    assert "retry-after" in answer.headers and answer.headers["content-type"] == "application/problem+json"
    canary[0] = (True, "passed")
    answer = await client.get("/ready")
    report = answer.json()
    assert answer.status_code == 200 and report["status"] == "ready"
    for key, kind in (
        ("backend", str), ("model", str), ("guardrails", bool), ("world_size", int), ("max_batch_size", int),
        ("model_max_ongoing_requests", int), ("batch_wait_timeout_s", float), ("framework_revision", str),
        ("server_source_revision", str), ("weights_baked", bool),
    ):  # fmt: skip
        assert type(report[key]) is kind, key
    assert report["limits"] == {"body_bytes": 20_000, "samples": 1024}
    assert report["framework_revision"] == "diffusers-0.42.1" and report["weights_baked"] is False
    assert report["queue_depth"] == 0


async def test_metrics_are_prometheus_text(client: httpx.AsyncClient) -> None:
    await client.get("/health", headers={"Authorization": "Bearer nobody"})
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert "cosmos3_generator_unauthorized_total 1.0" in answer.text


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [("GET", "/docs", 404, "not_found"), ("GET", "/-/healthz", 404, "not_found"), ("GET", "/health/", 404, "not_found"),
     ("PUT", "/v1/batches", 405, "method_not_allowed"), ("DELETE", "/health", 405, "method_not_allowed"),
     ("GET", "/v1/batches/none", 404, "not_found"), ("DELETE", "/v1/batches/none", 404, "not_found"),
     ("GET", "/v1/batches/none/events", 404, "not_found"), ("GET", "/v1/batches/none/response", 404, "not_found")],
)  # fmt: skip
async def test_unknown_things_are_problems(
    method: str, path: str, status: int, code: str, client: httpx.AsyncClient
) -> None:
    answer = await client.request(method, path)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert (await client.request(method, path, headers={"Authorization": "x"})).status_code == 401


# ---- submitting ----------------------------------------------------------------------------------------------------


async def test_a_blocking_post_answers_with_the_response_once_the_batch_ended(
    client: httpx.AsyncClient, batches: FakeDesk
) -> None:
    posting = asyncio.create_task(client.post("/v1/batches", json=body("one")))
    await until(lambda: "one" in batches.batches)
    assert not posting.done()
    batches.end("one")
    answer = await posting
    assert answer.status_code == 200 and answer.json() == {"request_id": "one", "names": ["a"]}
    assert answer.content == (await client.get("/v1/batches/one/response")).content
    assert batches.abandoned == []
    again = await client.post("/v1/batches", json=body("one"))
    assert again.content == answer.content


@pytest.mark.parametrize(
    "prefer", ["respond-async", "wait=10, Respond-Async", 'handling=lenient,respond-async; foo="bar"']
)
async def test_prefer_respond_async_answers_202_at_once(prefer: str, client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/batches", json=body("two"), headers={"Prefer": prefer})
    assert answer.status_code == 202
    assert answer.headers["location"] == "/v1/batches/two"
    assert answer.headers["preference-applied"] == "respond-async"
    assert answer.json()["request_id"] == "two"
    assert (await client.get("/v1/batches/two/response")).json()["code"] == "batch_not_ended"


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"", "invalid_json"), (b"not json", "invalid_json"), (b"\xff", "invalid_json"), (b'{"a":NaN}', "invalid_json"),
     (b'{"model":"x","model":"y"}', "invalid_json"), (b'{"samples":[{"name":"a","name":"b"}]}', "invalid_json"),
     (b"[" * 5000, "invalid_json"), (b"[]", "validation_failed"), (b"{}", "validation_failed"),
     (b'{"samples":[]}', "validation_failed"), (b'{"samples":[{"prompt":"x"}]}', "validation_failed")],
)  # fmt: skip
async def test_what_is_no_batch_is_422(content: bytes, code: str, client: httpx.AsyncClient, batches: FakeDesk) -> None:
    answer = await client.post("/v1/batches", content=content)
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert batches.batches == {}


async def test_the_other_refusals_have_their_own_statuses(client: httpx.AsyncClient, batches: FakeDesk) -> None:
    answer = await client.post("/v1/batches", content=json.dumps(body()), headers={"Content-Type": "text/plain"})
    assert answer.status_code == 415
    answer = await client.post("/v1/batches", json=body("../x"))
    assert answer.status_code == 400 and answer.json()["code"] == "invalid_request_id"
    answer = await client.post("/v1/batches", json=body() | {"model": "Other"})
    assert answer.status_code == 404 and answer.json()["detail"] == "model 'Other' is not loaded"
    answer = await client.post("/v1/batches", json=body(prompt="x" * 30_000))
    assert answer.status_code == 413 and "20000" in answer.json()["detail"]
    for refusal, status in (
        (QueueFull("full", retry_after_s=7), 429),
        (Conflict("other body"), 409),
        (StorageAuthorizationError("not allowed"), 400),
        (DeadlineUnreachable("too long"), 422),
    ):
        batches.refuse = refusal
        answer = await client.post("/v1/batches", json=body())
        assert (answer.status_code, answer.json()["detail"]) == (status, refusal.detail)
    assert (await client.post("/v1/batches", json=body())).status_code == 422


async def test_a_missing_content_type_is_json_as_the_baselines_clients_have_it(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/batches", content=json.dumps(body("x")), headers={"Prefer": "respond-async"})
    assert answer.status_code == 202


async def test_before_the_start_and_while_draining_nothing_is_taken(
    client: httpx.AsyncClient, front: Front, batches: FakeDesk
) -> None:
    front.batches = None
    answer = await client.post("/v1/batches", json=body())
    assert (answer.status_code, answer.json()["code"]) == (503, "not_ready") and "retry-after" in answer.headers
    assert (await client.get("/v1/batches")).status_code == 503
    assert (await client.get("/health")).status_code == 200
    front.batches, front.accepting = batches, False
    answer = await client.post("/v1/batches", json=body())
    assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
    assert (await client.get("/v1/batches")).status_code == 200
    front.accepting, front.draining = True, True
    answer = await client.post("/v1/batches", json=body())
    assert (answer.status_code, answer.json()["code"]) == (503, "draining")
    assert (await client.get("/v1/batches")).status_code == 200


async def test_tenants_do_not_see_each_other(client: httpx.AsyncClient, batches: FakeDesk, tmp_path: Path) -> None:
    await client.post("/v1/batches", json=body("mine"), headers={"Prefer": "respond-async"})
    batches.put(tmp_path / "f", "mine/a/vision.jpg", b"x")
    other = {"Authorization": f"Bearer {BOB}"}
    assert (await client.get("/v1/batches/mine")).status_code == 200
    for path in ("/v1/batches/mine", "/v1/batches/mine/events", "/v1/artifacts/mine/a/vision.jpg"):
        assert (await client.get(path, headers=other)).status_code == 404
    assert (await client.get("/v1/batches", headers=other)).json() == {"batches": [], "next": None}


async def test_a_hundred_posts_with_one_x_request_id_get_each_their_own(
    client: httpx.AsyncClient, batches: FakeDesk
) -> None:
    marked = {"X-Request-ID": "same-for-all"}
    posts = [
        asyncio.create_task(client.post("/v1/batches", json=body(f"r{i}", name=f"n{i}"), headers=marked))
        for i in range(100)
    ]
    await until(lambda: len(batches.batches) == 100)
    for i in reversed(range(100)):
        batches.end(f"r{i}")
    for i, answer in enumerate(await asyncio.gather(*posts)):
        assert answer.json() == {"request_id": f"r{i}", "names": [f"n{i}"]}


async def test_listing_pages_and_its_limit_is_checked(client: httpx.AsyncClient, batches: FakeDesk) -> None:
    for i in range(5):
        await client.post("/v1/batches", json=body(f"b{i}"), headers={"Prefer": "respond-async"})
    seen, after = [], ""
    while True:
        page = (await client.get(f"/v1/batches?limit=2&after={after}")).json()
        seen += [b["request_id"] for b in page["batches"]]
        after = page["next"]
        if after is None:
            break
    assert seen == [f"b{i}" for i in range(5)]
    for bad in ("0", "501", "-1", "x", "1e3", "٣"):
        answer = await client.get("/v1/batches", params={"limit": bad})
        assert answer.status_code == 422 and answer.json()["errors"][0]["field"] == "limit"


async def test_cancel_answers_with_the_batch(client: httpx.AsyncClient, batches: FakeDesk) -> None:
    await client.post("/v1/batches", json=body("c"), headers={"Prefer": "respond-async"})
    answer = await client.delete("/v1/batches/c")
    assert answer.status_code == 200 and answer.json()["state"] == "cancelled"


# ---- clients that leave --------------------------------------------------------------------------------------------


class Leaving(Exchange):
    """A blocking POST whose client leaves when told."""

    def __init__(self, request_id: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__("POST", "/v1/batches", [(b"authorization", f"Bearer {TOKEN}".encode()), *headers])
        self._body = [json.dumps(body(request_id)).encode()]
        self.leave = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        if not self._body:
            await self.leave.wait()
        return await super().receive()


async def test_a_lost_client_gives_its_batch_up_unless_another_waits(front: Front, batches: FakeDesk) -> None:
    app = build_app(front)
    first, second = Leaving("shared"), Leaving("shared")
    tasks = [asyncio.create_task(x.run(app)) for x in (first, second)]
    await until(
        lambda: (
            "shared" in batches.batches
            and len(front.waiters._waiting) == 1
            and sum(front.waiters._waiting.values()) == 2
        )
    )
    first.leave.set()
    await tasks[0]
    assert batches.abandoned == []
    second.leave.set()
    await tasks[1]
    assert batches.abandoned == ["shared"]
    assert front.waiters._waiting == {}


async def test_an_asynchronous_batch_survives_a_lost_waiter(front: Front, batches: FakeDesk) -> None:
    app = build_app(front)
    await Leaving("kept", ((b"prefer", b"respond-async"),)).run(app)
    waiter = Leaving("kept")
    task = asyncio.create_task(waiter.run(app))
    await until(lambda: front.waiters._waiting)
    waiter.leave.set()
    await task
    assert batches.abandoned == []


async def test_a_server_that_stops_does_not_give_batches_up(front: Front, batches: FakeDesk) -> None:
    task = asyncio.create_task(Leaving("held").run(build_app(front)))
    await until(lambda: front.waiters._waiting)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert batches.abandoned == [] and front.waiters._waiting == {}


# ---- events --------------------------------------------------------------------------------------------------------


async def test_events_are_sent_as_they_come_and_the_stream_ends(client: httpx.AsyncClient, batches: FakeDesk) -> None:
    await client.post("/v1/batches", json=body("e"), headers={"Prefer": "respond-async"})
    batches.tell("e", "sample")
    batches.tell("e", "progress")
    batches.end("e")
    answer = await client.get("/v1/batches/e/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = [b for b in answer.text.split("\n\n") if b.startswith("id:")]
    assert [b.split("\n")[1] for b in blocks] == ["event: sample", "event: progress", "event: end"]
    data = json.loads(blocks[0].split("data: ")[1])
    assert data["id"] == 1 and data["type"] == "sample"
    answer = await client.get("/v1/batches/e/events", headers={"Last-Event-ID": "2"})
    assert [b for b in answer.text.split("\n\n") if b.startswith("id:")] == blocks[2:]
    assert (await client.get("/v1/batches/e/events", headers={"Last-Event-ID": "x"})).status_code == 422
    assert batches.open_streams == 0


async def test_a_silent_stream_sends_comments_and_closes_with_its_client(
    front: Front, batches: FakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cosmos3_serve.generator.http.event_stream.HEARTBEAT_S", 0.02)
    await Leaving("s", ((b"prefer", b"respond-async"),)).run(build_app(front))
    stream = Leaving("s")
    stream.scope |= {"method": "GET", "path": "/v1/batches/s/events", "raw_path": b"/v1/batches/s/events"}
    stream._body = []
    task = asyncio.create_task(stream.run(build_app(front)))
    await until(lambda: stream.content.count(b": still here\n\n") >= 2 if stream.sent else False)
    batches.tell("s", "sample")
    await until(lambda: b"event: sample" in stream.content)
    assert batches.open_streams == 1
    stream.leave.set()
    await task
    assert batches.open_streams == 0
