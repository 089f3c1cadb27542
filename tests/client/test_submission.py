"""The whole way, S3 to S3 and file to folder: layout, exact bytes, provenance, and what is refused before the POST."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.baseline_server import PIN, BaselineServer, Faults
from support.ledger_server import LedgerServer
from support.s3 import LocalS3, boto, keys_of

from cosmos3_serve import __version__
from cosmos3_serve.client.journal import Journals
from cosmos3_serve.client.progress import Silent
from cosmos3_serve.client.submit import Order, submit_batch, submit_batch_async
from cosmos3_serve.errors import (
    Conflict,
    Cosmos3Error,
    Cosmos3RayServeError,
    ExitCode,
    IntegrityError,
    NotReady,
    Refusal,
    Unauthorized,
    UsageError,
    ValidationFailed,
)

SAMPLES = [
    {"name": "a", "model_mode": "text2image", "prompt": "p", "seed": 17, "resolution": "256"},
    {"name": "b", "prompt": "q", "num_frames": 5, "resolution": "256"},
    {"name": "c", "model_mode": "reasoner", "prompt": "r"},
]
PLAN_KEYS = {
    "schema_version", "status", "run_id", "endpoint", "input_path", "output_path", "model", "sample_names",
    "batch_size", "backend", "weights_baked",
}  # fmt: skip
BASELINE_KEYS = PLAN_KEYS | {
    "request_id", "guardrails", "max_batch_size", "framework_revision", "server_source_revision", "artifacts",
    "structured_outputs", "runtime_image", "published_uri", "provenance_uri",
}  # fmt: skip


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BaselineServer]:
    with BaselineServer(tmp_path / "server", faults=Faults()) as made:
        yield made


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[LedgerServer]:
    with LedgerServer(tmp_path / "ledger") as made:
        yield made


def batch(tmp_path: Path, samples: Any = None) -> str:
    path = tmp_path / "batch.json"
    path.write_text(json.dumps(SAMPLES if samples is None else samples))
    return str(path)


def test_s3_to_s3(s3: LocalS3, ledger: LedgerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPA_TASK_IMAGE", "registry/image@sha256:1")
    s3.create_bucket("happy")
    client = boto(s3.environ)
    body = {"model": "Cosmos3-Nano", "samples": SAMPLES, "request_id": "req-7", "ignored": 1}
    client.put_object(Bucket="happy", Key="in/batch.json", Body=json.dumps(body).encode())
    client.put_object(Bucket="happy", Key="out/leftover.txt", Body=b"of somebody else")
    manifest = submit_batch(
        input_path="s3://happy/in/batch.json",
        output_path="s3://happy/out",
        endpoint=ledger.endpoint + "/",
        run_id="run-3",
    )
    names = ["a/vision.jpg", "b/vision.mp4", "c/reasoner_text.txt"]
    expected = ["leftover.txt", "provenance.json", "request.json", "response.json"]
    expected += [f"artifacts/req-7/{name}" for name in names]
    assert keys_of(s3.environ, "happy", "out/") == sorted(f"out/{name}" for name in expected)

    def stored(name: str) -> bytes:
        data: bytes = client.get_object(Bucket="happy", Key=f"out/{name}")["Body"].read()
        return data

    for name in names:
        assert stored(f"artifacts/req-7/{name}") == (ledger.root / "req-7" / name).read_bytes()
    assert stored("response.json") == ledger.ledger["req-7"].response
    request = stored("request.json")
    assert json.loads(request) == {"samples": SAMPLES, "model": "Cosmos3-Nano", "request_id": "req-7"}
    text = stored("provenance.json").decode()
    assert text == json.dumps(manifest, indent=2, sort_keys=True) + "\n"

    assert manifest.keys() >= BASELINE_KEYS
    facts = {
        "schema_version": "npa.cosmos3.ray-serve.provenance.v1",
        "status": "completed",
        "run_id": "run-3",
        "endpoint": ledger.endpoint,
        "input_path": "s3://happy/in/batch.json",
        "output_path": "s3://happy/out",
        "published_uri": "s3://happy/out/",
        "provenance_uri": "s3://happy/out/provenance.json",
        "sample_names": ["a", "b", "c"],
        "batch_size": 3,
        "backend": "cosmos-framework-native-ray-serve",
        "framework_revision": PIN,
        "runtime_image": "registry/image@sha256:1",
        "weights_baked": False,
        "client_version": __version__,
        "request_sha256": hashlib.sha256(request).hexdigest(),
        "response_sha256": hashlib.sha256(stored("response.json")).hexdigest(),
        "missing": [],
    }
    assert facts.items() <= manifest.items()
    assert manifest["seeds"]["a"] == 17
    assert {m["path"].rpartition("/")[2]: m["frames"] for m in manifest["media"]} == {
        "vision.jpg": None, "vision.mp4": 5, "reasoner_text.txt": None,
    }  # fmt: skip
    assert {"submit_to_end", "delivery", "publication"} <= manifest["phases"].keys()
    assert "Initialization" in manifest["throughput_note"]


def test_file_to_folder_from_a_baseline_service(server: BaselineServer, tmp_path: Path, own_state: Path) -> None:
    out = tmp_path / "out"
    manifest = submit_batch(input_path=batch(tmp_path), output_path=str(out), endpoint=server.endpoint)
    assert manifest["published_uri"] == str(out)
    assert manifest["provenance_uri"] == str(out / "provenance.json")
    assert json.loads((out / "request.json").read_bytes())["request_id"] == manifest["request_id"] == server.batches[0]
    assert [r["state"] for r in manifest["samples"]] == ["succeeded"] * 3
    assert Journals(own_state).all() == []
    assert [p for p in own_state.rglob("*") if p.is_file()] == []


def test_the_plan_is_the_baselines_and_needs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NPA_COSMOS3_RAY_TOKEN")
    plan = submit_batch(
        input_path=batch(tmp_path), output_path="s3://b/out/", endpoint="http://127.0.0.1:1/", run_id="r", dry_run=True
    )
    assert plan == {
        "schema_version": "npa.cosmos3.ray-serve.provenance.v1",
        "status": "planned",
        "run_id": "r",
        "endpoint": "http://127.0.0.1:1",
        "input_path": str(tmp_path / "batch.json"),
        "output_path": "s3://b/out/",
        "model": "Cosmos3-Nano",
        "sample_names": ["a", "b", "c"],
        "batch_size": 3,
        "backend": "cosmos-framework-native-ray-serve",
        "weights_baked": False,
    }
    assert not (tmp_path / "state").exists()


async def test_it_can_be_called_where_a_loop_runs(server: BaselineServer, tmp_path: Path) -> None:
    """From a notebook by the sync door, and by the async one."""
    path = batch(tmp_path, SAMPLES[:1])
    done = await asyncio.to_thread(
        submit_batch, input_path=path, output_path=str(tmp_path / "one"), endpoint=server.endpoint
    )
    assert done["status"] == "completed"
    plan = submit_batch(input_path=path, output_path=str(tmp_path / "two"), endpoint=server.endpoint, dry_run=True)
    assert plan["status"] == "planned"
    order = Order(input_path=path, output_path=str(tmp_path / "three"), endpoint=server.endpoint)
    assert (await submit_batch_async(order))["status"] == "completed"


def sample(**changes: Any) -> list[dict[str, Any]]:
    return [{**SAMPLES[0], **changes}]


INPUTS: dict[str, Any] = {
    "no samples": [],
    "unknown key": sample(promt="typo"),
    "unknown mode": sample(model_mode="tex2image"),
    "video2image": [{"name": "a", "vision_path": "s3://b/v.mp4", "num_frames": 1}],
    "unknown suffix": [{"name": "a", "vision_path": "s3://b/v.gif"}],
    "local path": sample(model_mode="image2image", vision_path="/etc/passwd.png"),
    "http path": sample(model_mode="image2image", vision_path="http://h/x.png"),
    "two outputs": sample(num_outputs=2),
    "half a frame": sample(num_frames=1.5),
    "defaults file": sample(defaults_file="x.json"),
    "output dir": sample(output_dir="/tmp"),
    "pickle": sample(pickle_file="s3://b/x.pickle"),
    "name with blank": sample(name=" a "),
    "names twice": sample() * 2,
    "other model": {"model": "Cosmos3-Super", "samples": sample()},
    "bad id": {"request_id": "../x", "samples": sample()},
    "number for text": sample(resolution=256),
    "key that cannot be fetched exactly": sample(model_mode="image2image", vision_path="s3://b/a%3Fb.png"),
    "key with two slashes": sample(model_mode="image2image", vision_path="s3://b/a//b.png"),
    "key that climbs": sample(model_mode="image2image", vision_path="s3://b/a/../b.png"),
}


@pytest.mark.parametrize("name", INPUTS)
def test_bad_input_never_reaches_the_service(server: BaselineServer, tmp_path: Path, name: str) -> None:
    for dry_run in (True, False):
        with pytest.raises(Cosmos3Error) as caught:
            submit_batch(
                input_path=batch(tmp_path, INPUTS[name]), output_path=str(tmp_path / "out"), endpoint=server.endpoint,
                dry_run=dry_run,
            )  # fmt: skip
        assert caught.value.exit_code == ExitCode.INPUT
        assert caught.value.remedy or all(e.remedy for e in caught.value.errors)
    assert server.log == []


@pytest.mark.parametrize(
    "text", ["", "{", "nope", "[1]", '{"samples": 3}', '"text"', "null", "[" * 9999, '[{"a": NaN}]']
)
def test_what_is_no_batch_is_a_validation_failure(server: BaselineServer, tmp_path: Path, text: str) -> None:
    (tmp_path / "batch.json").write_text(text)
    with pytest.raises(ValidationFailed, match=r"^invalid Cosmos3 Ray batch"):
        submit_batch(
            input_path=str(tmp_path / "batch.json"), output_path=str(tmp_path / "out"), endpoint=server.endpoint
        )


@pytest.mark.parametrize(
    "changes",
    [
        {"input_path": " "},
        {"input_path": "/nowhere/batch.json"},
        {"input_path": "s3://bucket/prefix/"},
        {"output_path": "relative/out"},
        {"output_path": "s3:///key"},
        {"output_path": "s3://b/a//c"},
        {"output_path": "gs://b/out"},
        {"endpoint": ""},
        {"endpoint": "ftp://host"},
        {"endpoint": "host:8000"},
        {"endpoint": "http://user:pw@host"},
        {"endpoint": "http://host?x=1"},
        {"endpoint": "http://host:99999"},
        {"token_env": "NOT_SET"},
        {"timeout": 0},
        {"timeout": float("nan")},
        {"concurrency": 0},
    ],
)
def test_usage_is_checked_before_anything_is_sent(
    s3: LocalS3, server: BaselineServer, tmp_path: Path, changes: dict[str, Any]
) -> None:
    options = {"input_path": batch(tmp_path), "output_path": str(tmp_path / "out"), "endpoint": server.endpoint}
    with pytest.raises(Cosmos3Error) as caught:
        submit_batch(**(options | changes))
    assert caught.value.exit_code == ExitCode.INPUT
    assert caught.value.remedy
    if "token_env" in changes:
        assert isinstance(caught.value, UsageError) and "NOT_SET" in caught.value.detail
    assert server.log == []


class Ears(Silent):
    def __init__(self) -> None:
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)


def test_plain_http_off_this_machine_is_warned_about_not_refused(tmp_path: Path) -> None:
    ears = Ears()
    with pytest.raises(Cosmos3Error):
        submit_batch(
            input_path=batch(tmp_path), output_path=str(tmp_path / "out"), endpoint="http://cosmos3.invalid:8000",
            progress=ears, timeout=1,
        )  # fmt: skip
    assert "plain http" in ears.notices[0]
    assert "support-token" not in "".join(ears.notices)


def not_ready(server: BaselineServer) -> dict[str, Any]:
    server.faults.ready = False
    return {}


def other_token(server: BaselineServer) -> dict[str, Any]:
    server.token = "rotated"
    return {}


def diffusers(server: BaselineServer) -> dict[str, Any]:
    server.revision = "diffusers-0.42.1"
    return {}


def redirect(server: BaselineServer) -> dict[str, Any]:
    server.faults.redirect_to = "http://127.0.0.1:1"
    return {}


def full(server: BaselineServer) -> dict[str, Any]:
    server.faults.post_statuses = [429] * 50
    return {}


def opaque(server: BaselineServer) -> dict[str, Any]:
    server.faults.post_statuses = [500]
    return {}


@pytest.mark.parametrize(
    ("prepare", "kind", "code", "exit_code", "kept"),
    [
        (not_ready, NotReady, "not_ready", ExitCode.REFUSED, False),
        (other_token, Unauthorized, "unauthorized", ExitCode.REFUSED, False),
        (diffusers, Refusal, "revision_mismatch", ExitCode.REFUSED, False),
        (redirect, Cosmos3RayServeError, "redirect_refused", ExitCode.SERVICE, False),
        (full, Refusal, "queue_full", ExitCode.REFUSED, False),
        (opaque, Cosmos3RayServeError, "ray_serve_failed", ExitCode.SERVICE, True),
    ],
)
def test_a_service_that_says_no(
    server: BaselineServer,
    tmp_path: Path,
    own_state: Path,
    prepare: Callable[[BaselineServer], Any],
    kind: type[Cosmos3Error],
    code: str,
    exit_code: int,
    kept: bool,
) -> None:
    prepare(server)
    with pytest.raises(kind) as caught:
        submit_batch(input_path=batch(tmp_path), output_path=str(tmp_path / "out"), endpoint=server.endpoint)
    assert (caught.value.stable_code, caught.value.exit_code) == (code, exit_code)
    assert server.batches == []
    assert not (tmp_path / "out").exists()
    assert bool(Journals(own_state).all()) is kept  # nothing was accepted: nothing to remember


def test_expected_revision_can_be_named(tmp_path: Path) -> None:
    with BaselineServer(tmp_path / "server", revision="diffusers-0.42.1", backend="diffusers-ray-serve") as server:
        manifest = submit_batch(
            input_path=batch(tmp_path, SAMPLES[:1]), output_path=str(tmp_path / "out"), endpoint=server.endpoint,
            expected_revision="diffusers-0.42.1",
        )  # fmt: skip
    assert manifest["framework_revision"] == "diffusers-0.42.1"


def test_wrong_bytes_publish_nothing_and_are_resumable(server: BaselineServer, tmp_path: Path) -> None:
    server.faults.flip_bytes = {"vision.mp4": 99}
    options = {"input_path": batch(tmp_path), "output_path": str(tmp_path / "out"), "endpoint": server.endpoint}
    with pytest.raises(IntegrityError, match=r"artifact integrity mismatch for .*/b/vision\.mp4"):
        submit_batch(**options)
    assert not (tmp_path / "out").exists()
    server.faults.flip_bytes = {}
    assert submit_batch(**options, resume=True)["status"] == "completed"
    assert len(server.batches) == 1


def test_media_that_lie_publish_nothing(server: BaselineServer, tmp_path: Path) -> None:
    def pretend(body: dict[str, Any]) -> None:
        body["outputs"][1]["args"]["num_frames"] = 9  # hash and size are right, the clip has 5 frames

    server.faults.edit_response = pretend
    with pytest.raises(IntegrityError, match="5 frames, expected 9") as caught:
        submit_batch(input_path=batch(tmp_path), output_path=str(tmp_path / "out"), endpoint=server.endpoint)
    assert caught.value.stable_code == "media_invalid"
    assert not (tmp_path / "out").exists()


def test_a_used_output_is_refused_before_the_post(server: BaselineServer, tmp_path: Path) -> None:
    options = {"input_path": batch(tmp_path, SAMPLES[:1]), "output_path": str(tmp_path / "out")}
    first = submit_batch(**options, endpoint=server.endpoint)
    before = (tmp_path / "out/provenance.json").read_bytes()
    with pytest.raises(Conflict) as caught:
        submit_batch(**options, endpoint=server.endpoint)
    assert caught.value.stable_code == "publication_exists"
    assert server.batches == [first["request_id"]]
    assert (tmp_path / "out/provenance.json").read_bytes() == before


def test_a_spool_smaller_than_the_batch_goes_in_windows(server: BaselineServer, tmp_path: Path) -> None:
    server.padding = {"output.safetensors": 300_000}
    manifest = submit_batch(
        input_path=batch(tmp_path), output_path=str(tmp_path / "out"), endpoint=server.endpoint, spool_bytes=320_000,
        concurrency=2,
    )  # fmt: skip
    assert len(manifest["artifacts"]) == 5
    with pytest.raises(Cosmos3Error) as caught:
        submit_batch(
            input_path=batch(tmp_path), output_path=str(tmp_path / "two"), endpoint=server.endpoint, spool_bytes=299_999
        )
    assert caught.value.stable_code == "spool_too_small"
    assert not (tmp_path / "two").exists()
