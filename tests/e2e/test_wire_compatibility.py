"""An existing client, written from the public contract alone, against our real generator.

The other direction, our client against a server that answers exactly as the contract says, is in tests/client/.
"""

import hashlib
import json
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from PIL import Image
from support import baseline_client
from support.live import assert_passed, run_live_check

from cosmos3_serve.cli import main

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
CLIP = {"num_frames": 5, "fps": 8, "num_steps": 2}
IMAGE = {"model_mode": "text2image", "num_steps": 2}


def submit(generator, output: Path, samples: list[dict], **more):
    return baseline_client.run(
        input_text=json.dumps({"samples": samples}),
        output_path=str(output),
        endpoint=generator.url,
        token=generator.token,
        **more,
    )


def test_the_command_prints_its_ready_line_as_json(generator) -> None:
    # stdout and stderr share this file; the log's own line of the same moment has an `event`.
    lines = [line for line in generator.log_path.read_text().splitlines() if line.startswith('{"backend"')]
    told = [said for said in map(json.loads, lines) if "event" not in said]
    assert told[-1] == generator.ready
    assert len({said["pid"] for said in told}) == len(told), "once for each start"


@pytest.mark.parametrize(("token", "code"), [("", 0), ("wrong-token", 3)])
def test_ray_health_asks_with_the_token(generator, token, code, monkeypatch, capsys) -> None:
    monkeypatch.setenv("NPA_COSMOS3_RAY_TOKEN", token or generator.token)
    assert main.run(main.build(), "cosmos3", ["ray-health", "--endpoint", generator.url, "--json"]) == code
    said = json.loads(capsys.readouterr().out)
    assert said.get("status") == "ready" if code == 0 else said["code"] == "unauthorized"


def test_an_existing_client_gets_its_publication(generator, tmp_path) -> None:
    manifest = submit(
        generator,
        tmp_path,
        [
            {"name": "a", "prompt": "a robot workcell", "seed": 17, **IMAGE},
            {"name": "b", "prompt": "a warehouse aisle", **IMAGE},
            {"name": "implicit", "prompt": "on", "vision_path": "s3://wire/inputs/first%20frame%2B1.png", **CLIP},
            {
                "name": "encoded",
                "prompt": "on",
                "vision_path": f"s3://wire/inputs%2F{quote('étage')}/premi%C3%A8re 1.png",
            }
            | CLIP,
            {"name": "edges", "prompt": "x", "edge": {"control_path": "s3://wire/inputs/beginning.mp4"}, **CLIP}
            | {"model_mode": "text2video", "max_frames": 5},
        ],
        revision=generator.ready["framework_revision"],
    )
    assert manifest["status"] == "completed"
    modes = {result["args"]["name"]: result["args"]["model_mode"] for result in manifest["structured_outputs"]}
    assert modes == {
        **dict.fromkeys(("a", "b"), "text2image"),
        **dict.fromkeys(("implicit", "encoded"), "image2video"),
        "edges": "text2video",
    }
    for artifact in manifest["artifacts"]:
        data = (tmp_path / "artifacts" / artifact["path"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == artifact["sha256"]
    with Image.open(tmp_path / "artifacts" / manifest["request_id"] / "a" / "vision.jpg") as image:
        assert image.size == (256, 256)


def test_an_existing_client_with_the_pin_refuses_the_diffusers_engine(generator, tmp_path) -> None:
    with pytest.raises(baseline_client.BaselineClientError, match="another framework revision"):
        submit(generator, tmp_path, [{"name": "a", "prompt": "x", **IMAGE}])
    assert list(tmp_path.iterdir()) == []


def test_a_missing_seed_is_drawn_and_recorded(generator, tmp_path) -> None:
    revision = generator.ready["framework_revision"]
    manifest = submit(generator, tmp_path, [{"name": "a", "prompt": "x", **IMAGE}], revision=revision)
    assert type(manifest["structured_outputs"][0]["args"]["seed"]) is int


def test_no_absolute_server_path_leaves_the_service(generator, tmp_path) -> None:
    revision = generator.ready["framework_revision"]
    sample = {"name": "a", "vision_path": "s3://wire/inputs/first%20frame%2B1.png", "prompt": "x", **CLIP}
    manifest = submit(generator, tmp_path, [sample], revision=revision)
    text = json.dumps(manifest["structured_outputs"])
    assert "outputs/" not in text.replace("structured_outputs", "")
    assert "/.cosmos3/" not in text
    assert manifest["structured_outputs"][0]["args"]["vision_path"] == sample["vision_path"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"samples": [{"name": "a"}], "model": "Other"}, 404),
        ({"samples": [{"name": "a"}], "request_id": "../x"}, 400),
        ({"samples": [{"name": "a", "vision_path": "s3://other/x.png"}]}, 400),
        ({"samples": [{"name": "a", "vision_path": "/etc/passwd"}]}, 400),
        ({"samples": [{"name": "a", "nonsense": 1}]}, 422),
        ({"samples": []}, 422),
        ([1], 422),
    ],
)
def test_refusals_keep_the_baseline_statuses_and_a_text_detail(generator, body, status) -> None:
    answer = httpx.post(
        f"{generator.url}/v1/batches",
        json=body,
        headers=generator.headers,
        timeout=60,
        trust_env=False,
    )
    assert answer.status_code == status, answer.text
    assert isinstance(answer.json()["detail"], str)
    assert answer.json()["code"]


def test_ready_health_models_and_system_info_keep_the_baseline_fields(generator) -> None:
    with httpx.Client(base_url=generator.url, headers=generator.headers, timeout=60, trust_env=False) as http:
        ready = http.get("/ready").json()
        assert ready["status"] == "ready"
        assert {
            *("backend", "model", "guardrails", "world_size", "max_batch_size", "model_max_ongoing_requests"),
            *("batch_wait_timeout_s", "framework_revision", "server_source_revision", "weights_baked"),
        } <= ready.keys()
        assert http.get("/health").json()["status"] == "ok"
        assert http.get("/models").json() == ["Cosmos3-Nano"]
        assert {
            *("accelerators", "ray_cluster_resources", "framework_revision", "server_source_revision"),
        } <= http.get("/system-info").json().keys()


def test_the_operators_live_check_passes(generator) -> None:
    """On this engine its conditioned sample is image2video; image2image is refused by name and needs the framework."""
    done = run_live_check(
        {
            **generator.environ,
            "NPA_INTEGRATION_E2E": "1",
            "NPA_COSMOS3_RAY_ENDPOINT": generator.url,
            "NPA_COSMOS3_RAY_LIVE_OUTPUT_URI": "s3://live/owned/prefix/",
            "NO_PROXY": "127.0.0.1",
        }
    )
    assert_passed(done)
