"""The REAL framework at the pinned revision behind our ingress, client and S3 publication; random weights, CPU patches.

Runs where COSMOS3_TEST_FRAMEWORK_PYTHON names an interpreter that has it (docs/framework.md says how to make one). The
patches in tests/support/framework_cpu stand in for a GPU; deployment, batching, sampling and files are upstream's.
"""

import io
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import pytest
from PIL import Image, ImageChops, ImageStat
from support.framework_service import CPU, SRC, RealGenerator
from support.live import assert_passed, bare_environ, run_live_check
from support.real_framework import PYTHON, needs_framework
from support.s3 import LocalS3, boto, keys_of
from support.service import client

from cosmos3_serve.client.submit import submit_batch
from cosmos3_serve.contract.wire import FRAMEWORK_BACKEND, FRAMEWORK_REVISION

SOURCE = os.environ.get("COSMOS3_TEST_FRAMEWORK_CHECKPOINT", "")
EVIDENCE_ENV = "COSMOS3_EVIDENCE_DIR"
pytestmark = [pytest.mark.framework, pytest.mark.timeout(1200), needs_framework]
SMALL = {"resolution": "256", "num_steps": 2, "shift": 3.0}


@pytest.fixture(scope="module")
def s3() -> Iterator[LocalS3]:
    with LocalS3() as server:
        server.create_bucket("framework")
        picture = io.BytesIO()
        Image.new("RGB", (320, 192), (200, 30, 30)).save(picture, "PNG")
        for name, content in (
            ("a red.png", picture.getvalue()),
            ("no picture.png", b"text that is named as a picture"),
        ):
            boto(server.environ).put_object(Bucket="framework", Key=f"in/{name}", Body=content)
        yield server


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once by upstream's own classes, in its interpreter; 24 MB of random weights."""
    if SOURCE:
        return Path(SOURCE)
    folder = tmp_path_factory.mktemp("framework") / "tiny-random"
    environ = {**os.environ, "PYTHONPATH": str(CPU), "COSMOS_TRAINING": "0", "COSMOS_DEVICE": "cpu"}
    made = subprocess.run(
        [PYTHON, str(CPU / "make_checkpoint.py"), str(folder)],
        env={**environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def service(s3: LocalS3, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGenerator]:
    environ = {
        **s3.environ,
        "NPA_COSMOS3_RAY_ALLOWED_S3_ROOTS": "s3://framework/in,s3://framework/live",
        "NPA_COSMOS3_RAY_BATCH_WAIT_TIMEOUT_S": "1",
        "COSMOS3_DRAIN_TIMEOUT_S": "5",
    }
    with RealGenerator(Path(PYTHON), checkpoint, environ, tmp_path_factory.mktemp("real")) as running:
        yield running


@pytest.fixture(autouse=True)
def environment(s3: LocalS3, service: RealGenerator, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NPA_COSMOS3_RAY_TOKEN", service.token)


def publish(s3: LocalS3, service: RealGenerator, name: str, samples: list[dict[str, Any]], journal: Path) -> Any:
    body = json.dumps({"model": "Cosmos3-Nano", "samples": samples}).encode()
    boto(s3.environ).put_object(Bucket="framework", Key=f"jobs/{name}.json", Body=body)
    return submit_batch(
        input_path=f"s3://framework/jobs/{name}.json",
        output_path=f"s3://framework/out/{name}/",
        endpoint=service.url,
        timeout=600,
        journal_dir=journal,
    )


def logged(service: RealGenerator) -> list[str]:
    """The service's own lines; Ray and upstream write others between them."""
    return [line for line in service.log_path.read_text(errors="replace").splitlines() if line.startswith('{"')]


def read(s3: LocalS3, key: str) -> bytes:
    content: bytes = boto(s3.environ).get_object(Bucket="framework", Key=key)["Body"].read()
    return content


def test_the_revision_was_proved_and_ready_names_it(service: RealGenerator) -> None:
    with client(service) as http:
        ready = http.get("/ready").json()
    assert ready["framework_revision"] == FRAMEWORK_REVISION and ready["backend"] == FRAMEWORK_BACKEND
    assert ready["status"] == "ready"
    proofs = [json.loads(line) for line in logged(service) if "revision_proved" in line]
    assert proofs and proofs[0]["revision"] == FRAMEWORK_REVISION and proofs[0]["files"] > 600
    # The patches put upstream on the CPU, and the service says so: no evidence for any GPU comes from here.
    assert (ready["target"], ready["target_status"]) == ("cpu", "cpu")
    keep("ready.json", ready)


def test_pictures_a_clip_and_a_thought_go_all_the_way_to_s3(
    s3: LocalS3, service: RealGenerator, tmp_path: Path
) -> None:
    warm = [{"name": "first", "model_mode": "text2image", "prompt": "a red cube", "seed": 1, **SMALL}]
    assert publish(s3, service, "warm", warm, tmp_path)["status"] == "completed"
    # The second differs from the first by its seed, the third by its prompt, the fourth in nothing.
    asked = [("a red cube", 10), ("a red cube", 11), ("rain at night", 10), ("a red cube", 10)]
    pictures = [
        {"name": f"picture-{i}", "model_mode": "text2image", "prompt": prompt, "seed": seed, **SMALL}
        for i, (prompt, seed) in enumerate(asked)
    ]
    clip = {"name": "clip", "model_mode": "text2video", "prompt": "a cube turns", "num_frames": 5, "seed": 5, **SMALL}
    thought = {"name": "thought", "model_mode": "reasoner", "prompt": "what turns?", "max_new_tokens": 6, "seed": 6}
    manifest = publish(s3, service, "all", [*pictures, clip, thought], tmp_path)

    assert manifest["status"] == "completed" and manifest["backend"] == FRAMEWORK_BACKEND
    assert manifest["framework_revision"] == FRAMEWORK_REVISION and manifest["weights"] == "random"
    # Upstream's own generate_batch got the four pictures in one call, and nothing else with them.
    calls = [names for names in service.events() if names[0] not in ("canary", "probe", "first")]
    assert sorted(map(sorted, calls)) == [["clip"], [f"picture-{i}" for i in range(4)], ["thought"]]

    response = json.loads(read(s3, "out/all/response.json"))
    waves = {sample["name"]: sample["wave"] for sample in response["samples"]}
    assert [waves[f"picture-{i}"]["inference_batch"] for i in range(4)] == [4] * 4
    assert waves["clip"]["inference_batch"] == 1
    assert str(service.output_root) not in json.dumps(response)
    assert all(result["stack_trace"] is None for result in response["outputs"])
    keys = keys_of(s3.environ, "framework", "out/all/")
    for name in ("request.json", "response.json", "provenance.json"):
        assert f"out/all/{name}" in keys
    folder = f"out/all/artifacts/{response['request_id']}"
    seen = [read(s3, f"{folder}/picture-{i}/vision.jpg") for i in range(4)]
    first, other_seed, other_prompt, again = seen
    apart = {
        "seed": difference(first, other_seed),
        "prompt": difference(first, other_prompt),
        "nothing": difference(first, again),
    }
    keep("pictures-apart.json", apart)
    assert apart["seed"] > 5 and apart["prompt"] > 0.5, apart
    assert again == first, apart
    assert f"{folder}/clip/vision.mp4" in keys  # decoded by the client before it was published
    assert f"{folder}/thought/reasoner_text.txt" in keys
    assert response["outputs"][5]["outputs"][0]["content"]["reasoner_text"] is not None
    keep("response.json", response)
    keep("provenance.json", json.loads(read(s3, "out/all/provenance.json")))
    keep("upstream-generate-batch-calls.json", calls)


def test_a_clip_with_sound(s3: LocalS3, service: RealGenerator, tmp_path: Path) -> None:
    sample = {"name": "loud", "model_mode": "text2video", "prompt": "it rings", "num_frames": 5, "seed": 4, **SMALL}
    manifest = publish(s3, service, "sound", [sample | {"enable_sound": True}], tmp_path)
    assert manifest["status"] == "completed"
    response = json.loads(read(s3, "out/sound/response.json"))
    clip = read(s3, f"out/sound/artifacts/{response['request_id']}/loud/vision.mp4")
    with av.open(io.BytesIO(clip)) as media:
        (audio,) = media.streams.audio
        assert (audio.codec_context.name, audio.rate) == ("aac", 48000)
        assert media.streams.video


def test_an_image_from_s3_with_an_encoded_name_conditions_a_clip(
    s3: LocalS3, service: RealGenerator, tmp_path: Path
) -> None:
    uri = "s3://framework/in/a%20red.png"
    sample = {"name": "moving", "prompt": "it moves", "vision_path": uri, "num_frames": 5, "seed": 3, **SMALL}
    manifest = publish(s3, service, "conditioned", [sample], tmp_path)
    assert manifest["status"] == "completed"
    (result,) = json.loads(read(s3, "out/conditioned/response.json"))["outputs"]
    assert result["args"]["model_mode"] == "image2video" and result["args"]["vision_path"] == uri
    assert result["args"]["output_dir"].endswith("/moving") and not result["args"]["output_dir"].startswith("/")


def test_a_sample_that_upstream_cannot_run_fails_alone(s3: LocalS3, service: RealGenerator) -> None:
    """Only upstream's worker opens a picture. It raises for this one, and so for all that it was given with it."""
    common = {"prompt": "the same at night", "num_frames": 1, "seed": 1, "aspect_ratio": "1,1", **SMALL}
    pictures = {"first": "a%20red.png", "good": "a%20red.png", "bad": "no%20picture.png", "also-good": "a%20red.png"}
    samples = [{"name": name, "vision_path": f"s3://framework/in/{key}", **common} for name, key in pictures.items()]
    before = len(logged(service))
    with client(service, timeout=600) as http:
        known = http.post("/v1/batches", json={"samples": samples[:1]})  # an unknown shape would run alone
        answer = http.post("/v1/batches", json={"samples": samples[1:]})
    assert [sample["state"] for sample in known.json()["samples"]] == ["succeeded"]
    assert answer.status_code == 200
    told = {sample["name"]: sample for sample in answer.json()["samples"]}
    codes = {name: sample["code"] or sample["state"] for name, sample in told.items()}
    assert codes == {"good": "succeeded", "bad": "input_invalid", "also-good": "succeeded"}
    assert "picture" in told["bad"]["message"]
    assert "Traceback" not in answer.text and str(service.output_root) not in answer.text
    raised = [line for line in map(json.loads, logged(service)[before:]) if line.get("event") == "framework_raised"]
    # Once for each of the three that were together, once for it alone.
    assert [line["company"] for line in raised] == [True, True, True, False]
    keep("one-bad-picture.json", told)


def test_the_live_check_of_an_operator_passes(s3: LocalS3, service: RealGenerator) -> None:
    """tests/live as a command: text2image at the default size, and an implicit image2image with an encoded name."""
    live = {
        "NPA_INTEGRATION_E2E": "1",
        "NPA_COSMOS3_RAY_ENDPOINT": service.url,
        "NPA_COSMOS3_RAY_TOKEN": service.token,
        "NPA_COSMOS3_RAY_LIVE_OUTPUT_URI": "s3://framework/live/",
        "NO_PROXY": "127.0.0.1",
    }
    done = run_live_check({**bare_environ(), **s3.environ, **live})
    assert_passed(done)
    (kept,) = {key.split("/")[1] for key in keys_of(s3.environ, "framework", "live/")}
    response = json.loads(read(s3, f"live/{kept}/outputs/response.json"))
    modes = {output["args"]["name"]: output["args"]["model_mode"] for output in response["outputs"]}
    assert modes == {"live-text": "text2image", "live-implicit": "image2image"}
    keep("live-check.json", {"summary": done.stdout.strip().splitlines()[-1], "response": response})


def test_the_doctor_finds_only_what_a_machine_without_gpu_lacks() -> None:
    command = [PYTHON, "-m", "cosmos3_serve.cli.main", "framework", "doctor", "--json"]
    environ = {**os.environ, "NPA_COSMOS3_FRAMEWORK_PYTHON": PYTHON, "PYTHONPATH": str(SRC)}
    asked = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
    checks = {check["name"]: check for check in json.loads(asked.stdout)["checks"]}
    assert checks["revision"]["ok"], checks["revision"]
    assert all(check["ok"] for name, check in checks.items() if name.startswith("import "))
    wrong = {name for name, check in checks.items() if not check["ok"] and check["required"]}
    assert wrong <= {"gpu", "attention backend"}


def test_a_second_start_from_the_same_cache_and_no_connection_leaves(service: RealGenerator, checkpoint: Path) -> None:
    """Upstream converts the audio autoencoder where it is: in our copy, which the second start finds as it was."""
    with client(service) as http:
        first = http.get("/ready").json()
    (made,) = service.copies()
    before = {path.name: path.stat().st_mtime_ns for path in made.iterdir()}
    assert {"avae_48k_noncausal_25hz_64ch.ckpt", "avae_48k_noncausal_25hz_64ch.json"} < before.keys()
    service.stop()
    service.launch().wait_ready()
    with client(service) as http:
        second = http.get("/ready").json()
        answer = http.post(
            "/v1/batches", json={"samples": [{"name": "again", "prompt": "x", "num_frames": 1, **SMALL}]}
        )
    assert [sample["state"] for sample in answer.json()["samples"]] == ["succeeded"]
    assert second["status"] == "ready" and second["checkpoint_digest"] == first["checkpoint_digest"]
    assert {path.name: path.stat().st_mtime_ns for path in made.iterdir()} == before
    assert service.copies() == [made]
    assert {path.name for path in (checkpoint / "sound_tokenizer").iterdir()} == {
        "config.json", "diffusion_pytorch_model.safetensors",
    }  # fmt: skip
    assert not service.sockets_path.exists(), service.sockets_path.read_text()
    keep("second-start.json", {"first": first, "second": second})


def difference(one: bytes, other: bytes) -> float:
    """Mean absolute difference of two pictures of 256 x 256, in levels of 255."""
    with Image.open(io.BytesIO(one)) as left, Image.open(io.BytesIO(other)) as right:
        assert left.size == right.size == (256, 256)
        return float(sum(ImageStat.Stat(ImageChops.difference(left.convert("RGB"), right.convert("RGB"))).mean) / 3)


def keep(name: str, content: Any) -> None:
    """Write what was seen where the environment asks for it, for docs/evidence."""
    folder = os.environ.get(EVIDENCE_ENV)
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / name).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
