"""The support server and the independent client agree with each other: otherwise they could not judge us."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from support import baseline_client
from support.baseline_server import BaselineServer, Faults

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
        answer = httpx.request(method, server.endpoint + path, headers={"Authorization": f"Bearer {token}"})
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
