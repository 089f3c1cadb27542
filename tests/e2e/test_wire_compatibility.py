"""An existing client, written from the public contract alone, against our real service.

The other direction, our client against a server that answers exactly as the contract says, is in tests/client/.
"""

import hashlib
import json
from pathlib import Path
from urllib.parse import quote

import httpx
import obstore
import pytest
from obstore.store import S3Store
from PIL import Image
from support import baseline_client
from support.live import assert_passed, run_live_check
from support.processes import left_after, new_mark
from support.service import shared_cache

from cosmos3_serve.cli import demo, main
from cosmos3_serve.cli.local_s3 import LocalS3
from cosmos3_serve.cli.serve_command import ServeCommand

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
CLIP = {"num_frames": 5, "fps": 8, "num_steps": 2}
IMAGE = {"model_mode": "text2image", "num_steps": 2}
ELSEWHERE = "inputs/étage/première 1.png"  # as the bucket holds it; below, with its slash and its letters encoded


@pytest.fixture(scope="module")
def s3():
    with LocalS3() as server:
        server.create_bucket("wire")
        server.create_bucket("live")
        yield server


@pytest.fixture(scope="module")
def service(s3, tmp_path_factory):
    root, mark = tmp_path_factory.mktemp("service"), new_mark()
    files = demo.write_media(root / "inputs")
    store = S3Store(
        "wire",
        endpoint=s3.endpoint,
        access_key_id=s3.environ["AWS_ACCESS_KEY_ID"],
        secret_access_key=s3.environ["AWS_SECRET_ACCESS_KEY"],
        region="us-east-1",
        client_options={"allow_http": True},
    )
    for key, path in files.items():
        obstore.put(store, key, path)
    obstore.put(store, ELSEWHERE, files[demo.FIRST_FRAME])
    flags = [
        *("--host", "127.0.0.1", "--port", "0", "--engine", "diffusers", "--checkpoint", "tiny", "--no-guardrails"),
        *("--device", "cpu", "--allowed-s3-roots", "s3://wire/inputs,s3://live/owned"),
        *("--output-path", str(root / "outputs")),
        *("--drain-timeout-s", "5", "--cache-dir", str(shared_cache(tmp_path_factory))),
    ]
    with ServeCommand(flags, {**s3.environ, **mark}, shared_cache(tmp_path_factory)) as running:
        yield running
    assert left_after(mark) == {}


def submit(service, output: Path, samples: list[dict], **more):
    return baseline_client.run(
        input_text=json.dumps({"samples": samples}),
        output_path=str(output),
        endpoint=service.url,
        token=service.token,
        **more,
    )


def test_the_command_prints_its_ready_line_as_json(service) -> None:
    # stdout and stderr share this file; the log's own line of the same moment has an `event`.
    lines = [line for line in service.log_path.read_text().splitlines() if line.startswith('{"backend"')]
    assert [said for said in map(json.loads, lines) if "event" not in said] == [service.ready]


@pytest.mark.parametrize(("token", "code"), [("", 0), ("wrong-token", 3)])
def test_ray_health_asks_with_the_token(service, token, code, monkeypatch, capsys) -> None:
    monkeypatch.setenv("NPA_COSMOS3_RAY_TOKEN", token or service.token)
    assert main.run(main.build(), "cosmos3", ["ray-health", "--endpoint", service.url, "--json"]) == code
    said = json.loads(capsys.readouterr().out)
    assert said.get("status") == "ready" if code == 0 else said["code"] == "unauthorized"


def test_an_existing_client_gets_its_publication(service, tmp_path) -> None:
    manifest = submit(
        service,
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
            {"name": "edges", "prompt": "x", "edge": {"control_path": "s3://wire/inputs/street%20edges.mp4"}, **CLIP}
            | {"model_mode": "text2video", "max_frames": 5},
        ],
        revision=service.ready["framework_revision"],
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


def test_an_existing_client_with_the_pin_refuses_the_diffusers_engine(service, tmp_path) -> None:
    with pytest.raises(baseline_client.BaselineClientError, match="another framework revision"):
        submit(service, tmp_path, [{"name": "a", "prompt": "x", **IMAGE}])
    assert list(tmp_path.iterdir()) == []


def test_a_missing_seed_is_drawn_and_recorded(service, tmp_path) -> None:
    revision = service.ready["framework_revision"]
    manifest = submit(service, tmp_path, [{"name": "a", "prompt": "x", **IMAGE}], revision=revision)
    assert type(manifest["structured_outputs"][0]["args"]["seed"]) is int


def test_no_absolute_server_path_leaves_the_service(service, tmp_path) -> None:
    revision = service.ready["framework_revision"]
    sample = {"name": "a", "vision_path": "s3://wire/inputs/first%20frame%2B1.png", "prompt": "x", **CLIP}
    manifest = submit(service, tmp_path, [sample], revision=revision)
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
def test_refusals_keep_the_baseline_statuses_and_a_text_detail(service, body, status) -> None:
    answer = httpx.post(
        f"{service.url}/v1/batches",
        json=body,
        headers=service.headers,
        timeout=60,
        trust_env=False,
    )
    assert answer.status_code == status, answer.text
    assert isinstance(answer.json()["detail"], str)
    assert answer.json()["code"]


def test_ready_health_models_and_system_info_keep_the_baseline_fields(service) -> None:
    with httpx.Client(base_url=service.url, headers=service.headers, timeout=60, trust_env=False) as http:
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


def test_the_operators_live_check_passes(service) -> None:
    """On this engine its conditioned sample is image2video; image2image is refused by name and needs the framework."""
    done = run_live_check(
        {
            **service.environ,
            "NPA_INTEGRATION_E2E": "1",
            "NPA_COSMOS3_RAY_ENDPOINT": service.url,
            "NPA_COSMOS3_RAY_LIVE_OUTPUT_URI": "s3://live/owned/prefix/",
            "NO_PROXY": "127.0.0.1",
        }
    )
    assert_passed(done)
