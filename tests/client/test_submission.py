"""The whole way, S3 to S3 and file to folder: layout, exact bytes, provenance, and what is refused before the POST."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.baseline_server import PIN, BaselineServer, Faults
from support.flaky import Fault, FlakyProxy, canned
from support.ledger_server import LedgerServer
from support.places import files_of, unpublished
from support.s3 import LocalS3, boto, keys_of

from cosmos3_serve import __version__
from cosmos3_serve.client import follow
from cosmos3_serve.client.journals import Journals
from cosmos3_serve.client.submit import Order, submit_batch, submit_batch_async
from cosmos3_serve.errors import (
    Conflict,
    Cosmos3Error,
    ExitCode,
    Incomplete,
    IntegrityError,
    StorageFailure,
    UsageError,
)
from cosmos3_serve.storage import files
from cosmos3_serve.storage.directory import DirectoryStore

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
    assert unpublished(tmp_path / "out")
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
    assert unpublished(tmp_path / "out")


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
    assert unpublished(tmp_path / "two")


@pytest.mark.parametrize("kind", ["refuses", "ignores"])
def test_a_store_that_keeps_no_condition_is_refused_before_anything_is_generated(
    s3: LocalS3, ledger: LedgerServer, tmp_path: Path, own_state: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    s3.create_bucket(f"unconditional-{kind}")
    answer = canned("501 Not Implemented", "<Error><Code>NotImplemented</Code></Error>")

    def refuse(method: str, fields: dict[str, str]) -> bytes | None:
        return answer if kind == "refuses" and method == "PUT" and "if-none-match" in fields else None

    with FlakyProxy(s3.endpoint, answer=refuse, strip="If-None-Match" if kind == "ignores" else "") as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        with pytest.raises(StorageFailure) as caught:
            submit_batch(
                input_path=batch(tmp_path), output_path=f"s3://unconditional-{kind}/out", endpoint=ledger.endpoint
            )
    assert caught.value.stable_code == "conditional_put_unsupported" and caught.value.exit_code == ExitCode.SERVICE
    assert "local directory" in caught.value.remedy
    assert ledger.ledger == {}, "nothing was generated"
    assert keys_of(s3.environ, f"unconditional-{kind}") == []
    assert not list(own_state.rglob("run.json")), "there is nothing to resume"


@pytest.mark.parametrize("place", ["/proc/out", "file", "file/below"])
def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_generated(
    ledger: LedgerServer, tmp_path: Path, own_state: Path, place: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError) as caught:
        submit_batch(input_path=batch(tmp_path), output_path=str(tmp_path / place), endpoint=ledger.endpoint)
    assert (caught.value.stable_code, caught.value.exit_code) == ("location_not_writable", ExitCode.INPUT)
    assert ledger.ledger == {}, "nothing was generated"
    assert not list(own_state.rglob("run.json")), "there is nothing to resume"


def test_of_two_batches_for_one_place_the_second_is_not_generated(
    ledger: LedgerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine, another journal: the first one has not begun to publish when the second comes."""
    order = {"output_path": str(tmp_path / "out"), "endpoint": ledger.endpoint}
    first = {"input_path": batch(tmp_path, SAMPLES[:1]), "journal_dir": tmp_path / "first", **order}
    with monkeypatch.context() as patch, pytest.raises(Incomplete):
        patch.setattr(follow.Follower, "wait", _leave)
        submit_batch(**first)
    (posted,) = ledger.ledger
    (tmp_path / "other.json").write_text(json.dumps(SAMPLES[1:2]))
    second = {"input_path": str(tmp_path / "other.json"), "journal_dir": tmp_path / "second", **order}
    with pytest.raises(Conflict, match=f"claimed by request {posted}") as caught:
        submit_batch(**second)
    assert (caught.value.stable_code, caught.value.exit_code) == ("publication_exists", ExitCode.INPUT)
    assert list(ledger.ledger) == [posted], "the second was not generated"
    assert submit_batch(**first, resume=True)["status"] == "completed"
    assert files_of(tmp_path / "out") == sorted(
        ["provenance.json", "request.json", "response.json", f"artifacts/{posted}/a/vision.jpg"]
    )


async def _leave(self: follow.Follower) -> Any:
    raise Incomplete("left", code="deadline_exceeded")


def test_a_batch_that_the_service_does_not_take_leaves_the_place_free(ledger: LedgerServer, tmp_path: Path) -> None:
    options = {"input_path": batch(tmp_path, SAMPLES[:1]), "output_path": str(tmp_path / "out")}
    ledger.faults.post_statuses = [422, 422]
    for _ in range(2):
        with pytest.raises(Cosmos3Error):
            submit_batch(**options, endpoint=ledger.endpoint)
    assert submit_batch(**options, endpoint=ledger.endpoint)["status"] == "completed"
    assert not (tmp_path / "out" / ".cosmos3-claims").exists()


def test_names_that_differ_by_case_alone_are_refused_where_the_place_cannot_tell_them_apart(
    ledger: LedgerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = DirectoryStore._path
    monkeypatch.setattr(DirectoryStore, "_path", lambda self, key: path(self, key.lower()))
    samples = [{**SAMPLES[0], "name": name} for name in ("a", "A")]
    options = {"output_path": str(tmp_path / "out"), "endpoint": ledger.endpoint}
    with pytest.raises(UsageError, match="'a' and 'A' for one name") as caught:
        submit_batch(input_path=batch(tmp_path, samples), **options)
    assert caught.value.stable_code == "case_insensitive_location" and ledger.ledger == {}
    assert submit_batch(input_path=batch(tmp_path, SAMPLES[:1]), **options)["status"] == "completed"


@pytest.mark.parametrize("lost", ["claim", "response", "artifact", "seal", "all"])
def test_a_passing_conflict_or_a_late_object_ends_nothing(
    s3: LocalS3, ledger: LedgerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Each conditional PUT is answered 409 once while its key is free, each object read back is not there at first."""
    part = {"claim": "claims/", "response": "response", "artifact": "vision", "seal": "provenance", "all": "out/"}[lost]

    def plan(method: str, target: str, nth: int) -> Fault | None:
        if nth or part not in target:
            return None
        return {"PUT": Fault.CONFLICT, "GET": Fault.NOT_FOUND if "vision" in target else None}.get(method)

    s3.create_bucket("passing")
    with FlakyProxy(s3.endpoint, plan) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        manifest = submit_batch(
            input_path=batch(tmp_path, SAMPLES[:1]), output_path=f"s3://passing/{lost}/out/", endpoint=ledger.endpoint
        )
        assert manifest["status"] == "completed" and proxy.faults > 0


@pytest.mark.parametrize("rename", [True, False], ids=["renameat2", "nothing"])
def test_a_file_system_without_hard_links_publishes_whole_files_or_is_refused_before_anything_is_sent(
    ledger: LedgerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rename: bool
) -> None:
    def no_links(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    def unsupported(*_: Any) -> None:
        raise files.Unsupported(errno.EINVAL, "it has neither hard links nor a rename that does not replace")

    monkeypatch.setattr(os, "link", no_links)
    if not rename:
        monkeypatch.setattr(files, "_rename_no_replace", unsupported)
    options = {"input_path": batch(tmp_path, SAMPLES[:1]), "endpoint": ledger.endpoint}
    if rename:
        manifest = submit_batch(**options, output_path=str(tmp_path / "out"))
        assert json.loads((tmp_path / "out" / "provenance.json").read_bytes()) == manifest
        return
    with pytest.raises(StorageFailure) as caught:
        submit_batch(**options, output_path=str(tmp_path / "out"))
    assert caught.value.stable_code == "conditional_put_unsupported" and ledger.ledger == {}
    assert files_of(tmp_path / "out") == []
