"""The support server and the independent client agree with each other: otherwise they could not judge us."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from support import baseline_client
from support.baseline_server import BaselineServer, Faults
from support.batches import make_front
from support.core import start_core
from support.fakes import FakeClock
from support.ledger_server import LedgerServer

from cosmos3_serve.generator.http.application import build_app
from cosmos3_serve.service.tokens import TokenBook

BATCH = {
    "samples": [
        {"name": "a", "model_mode": "text2image", "prompt": "a robot", "seed": 1, "resolution": "256"},
        {"name": "b", "prompt": "an aisle", "num_frames": 6, "seed": 2, "resolution": "256"},
        {"name": "c", "model_mode": "reasoner", "prompt": "where is the pallet"},
    ]
}


def test_independent_client_publishes_from_the_baseline_server(tmp_path: Path) -> None:
    with BaselineServer(tmp_path / "server") as server:
        manifest = baseline_client.run(
            input_text=json.dumps(BATCH),
            output_path=str(tmp_path / "out"),
            endpoint=server.endpoint,
            token=server.token,
        )
    assert manifest["status"] == "completed"
    assert len(manifest["artifacts"]) == 3
    assert manifest["structured_outputs"][1]["args"]["num_frames"] == 9
    assert (tmp_path / "out/artifacts" / manifest["request_id"] / "b/vision.mp4").stat().st_size > 500


def test_independent_client_refuses_another_revision(tmp_path: Path) -> None:
    with (
        BaselineServer(tmp_path / "server", revision="diffusers-0.42.1") as server,
        pytest.raises(baseline_client.BaselineClientError, match="framework revision"),
    ):
        baseline_client.run(
            input_text=json.dumps(BATCH),
            output_path=str(tmp_path / "out"),
            endpoint=server.endpoint,
            token=server.token,
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("method", "path", "token", "status", "body"),
    [
        ("GET", "/health", "bad", 401, {"detail": "invalid bearer token"}),
        ("GET", "/nowhere", "bad", 404, {"detail": "Not Found"}),
        ("GET", "/models", "schlüssel", 500, None),
        ("GET", "/-/healthz", "bad", 200, None),
        ("GET", "/openapi.json", "bad", 200, None),
        ("HEAD", "/health", "support-token", 405, None),
        ("GET", "/models", "support-token", 200, ["Cosmos3-Nano"]),
        ("GET", "/ready", "support-token", 503, {"detail": "model deployment is not ready"}),
        ("GET", "/v1/artifacts/x/y/z", "support-token", 404, {"detail": "artifact not found"}),
        ("GET", "/v1/artifacts/%2e%2e/x", "support-token", 404, {"detail": "artifact not found"}),
        ("GET", "/v1/batches/x", "support-token", 404, {"detail": "Not Found"}),
    ],
)
def test_statuses(tmp_path: Path, method: str, path: str, token: str, status: int, body: object) -> None:
    with BaselineServer(tmp_path / "server", faults=Faults(ready=False)) as server:
        answer = httpx.request(method, server.endpoint + path, headers=[(b"Authorization", f"Bearer {token}".encode())])
    assert answer.status_code == status
    if body is not None:
        assert answer.json() == body


def test_used_id_is_an_opaque_500_and_range_is_206(tmp_path: Path) -> None:
    with BaselineServer(tmp_path / "server") as server:
        body = BATCH | {"request_id": "r1"}
        headers = {"Authorization": f"Bearer {server.token}"}
        first = httpx.post(f"{server.endpoint}/v1/batches", json=body, headers=headers)
        again = httpx.post(f"{server.endpoint}/v1/batches", json=body, headers=headers)
        url = f"{server.endpoint}/v1/artifacts/r1/a/vision.jpg"
        whole = httpx.get(url, headers=headers)
        part = httpx.get(url, headers=headers | {"Range": "bytes=10-", "If-Range": whole.headers["ETag"]})
    assert first.status_code == 200
    assert (again.status_code, again.text) == (500, "Internal Server Error")
    assert part.status_code == 206
    assert part.content == whole.content[10:]


IMAGE = {"name": "a", "model_mode": "text2image", "resolution": "256"}
SERVER_OWNED, OUTSIDE = "sample filesystem configuration is server-owned", "outside the configured bucket/prefix roots"
OPAQUE = "Internal Server Error"


def with_sample(**fields: object) -> dict[str, object]:
    return {"samples": [IMAGE | fields]}


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ([1], 422, "JSON decode error"),
        ("not sent", 422, "JSON decode error"),
        (with_sample() | {"model": "Other"}, 404, "model 'Other' is not loaded"),
        (with_sample() | {"model": 1}, 500, OPAQUE),
        (with_sample() | {"request_id": "out"}, 400, "invalid request id"),
        (with_sample() | {"request_id": "../x"}, 500, OPAQUE),
        ({}, 500, OPAQUE),
        ({"samples": []}, 500, OPAQUE),
        ({"samples": [IMAGE, IMAGE]}, 500, OPAQUE),
        (with_sample(name=".a"), 500, OPAQUE),
        (with_sample(nonsense=1), 500, OPAQUE),
        (with_sample(output_dir="/x"), 400, SERVER_OWNED),
        (with_sample(extra={"deep": [{"defaults_file": "x"}]}), 400, SERVER_OWNED),
        (with_sample(vision_path="/etc/passwd"), 400, "require an authorized s3:// object"),
        (with_sample(vision_path="s3://other/x.png"), 400, OUTSIDE),
        (with_sample(vision_path="s3://in/baseless.png"), 400, OUTSIDE),
        (with_sample(vision_path="s3://in/base/"), 400, "identify a single S3 object"),
        (with_sample(vision_path="s3://in/base/a%3Fb.png"), 400, "cannot be downloaded exactly"),
        (with_sample(vision_path="s3://in/base//x.png"), 400, "canonical"),
        (with_sample(edge={"control_path": "s3://other/e.mp4"}), 400, OUTSIDE),
        (with_sample(tensors_file="s3://in/base/x.pt"), 400, "unsupported sample file input"),
        (with_sample(extra={"mask_url": "http://x"}), 400, "unsupported sample file input"),
    ],
)
def test_refusals_of_a_batch(tmp_path: Path, body: object, status: int, said: str) -> None:
    with BaselineServer(tmp_path / "server", roots=("s3://in/base",)) as server:
        (server.root / "out").symlink_to(tmp_path)
        content = b"" if body == "not sent" else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {server.token}"}
        answer = httpx.post(f"{server.endpoint}/v1/batches", content=content, headers=headers)
        assert (answer.status_code, said in answer.text) == (status, True), answer.text
        assert server.generated == {}


def test_a_refused_input_burns_the_id_and_no_roots_refuse_every_input(tmp_path: Path) -> None:
    with BaselineServer(tmp_path / "server") as server:
        url, headers = f"{server.endpoint}/v1/batches", {"Authorization": f"Bearer {server.token}"}
        wrong = with_sample(vision_path="s3://in/x.png") | {"request_id": "burnt"}
        first = httpx.post(url, json=wrong, headers=headers)
        again = httpx.post(url, json=with_sample() | {"request_id": "burnt"}, headers=headers)
    assert (first.status_code, again.status_code, again.text) == (400, 500, OPAQUE)
    assert OUTSIDE in first.text


# ---- the ledger's additions: what ours answers, the double answers --------------------------------------------------


async def test_the_ledger_server_answers_as_the_service_does(tmp_path: Path) -> None:
    """Same questions to the double and to the product over its real coordinator: same statuses and codes."""
    core = await start_core(tmp_path / "ours", FakeClock())
    core.engine.script["a"] = ["slow"]
    app = build_app(make_front(core.coordinator, TokenBook("support-token", None)))  # type: ignore[arg-type]
    with LedgerServer(tmp_path / "double", step_s=0.3) as double:
        bearer = {"Authorization": f"Bearer {double.token}"}
        async with (
            httpx.AsyncClient(base_url=double.endpoint, headers=bearer) as theirs,
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://ours", headers=bearer) as ours,
        ):
            told = [await _told(http) for http in (theirs, ours)]
    core.engine.gate.set()
    await core.coordinator.close()
    assert told[0] == told[1]
    assert (409, "request_id_conflict") in told[1] and (200, "") in told[1]


async def _told(http: httpx.AsyncClient) -> list[tuple[int, str]]:
    body = {"samples": [{"name": "a", "prompt": "x", "num_frames": 1}], "request_id": "r", "model": "Cosmos3-Nano"}
    other = {**body, "samples": [{"name": "a", "prompt": "y", "num_frames": 1}]}
    later = {"Prefer": "respond-async"}
    answers = [
        await http.post("/v1/batches", json=body, headers=later),
        await http.post("/v1/batches", json=body, headers=later),
        await http.post("/v1/batches", json=other, headers=later),
        await http.get("/v1/batches/r"),
        await http.get("/v1/batches/r/response"),
        await http.delete("/v1/batches/r"),
        *[await http.get(f"/v1/batches/none{what}") for what in ("", "/events", "/response")],
        await http.delete("/v1/batches/none"),
    ]
    return [(answer.status_code, answer.json().get("code", "")) for answer in answers]
