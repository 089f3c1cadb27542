"""Every rule of docs/contract.md 4.2 through the whole client: a malformed copy of a real response is refused before
any download and before the output location is touched, and its bytes are kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.baseline_server import BaselineServer, Faults
from support.places import unpublished

from cosmos3_serve.client.journals import Journals
from cosmos3_serve.client.submit import submit_batch
from cosmos3_serve.errors import ContractViolation, Cosmos3RayServeError, ExitCode

Body = dict[str, Any]
Edit = Callable[[Body], Any]

BATCH = [
    {"name": "a", "model_mode": "text2image", "prompt": "p", "seed": 1, "resolution": "256"},
    {"name": "b", "prompt": "q", "num_frames": 5, "resolution": "256"},
    {"name": "c", "model_mode": "reasoner", "prompt": "r"},
    {"name": "d", "prompt": "s", "num_frames": 5, "resolution": "256", "edge": {"control_path": "s3://bucket/e.mp4"}},
]


def put(*path: Any, to: Any) -> Edit:
    """Set one value deep in the response."""

    def edit(body: Body) -> None:
        place: Any = body
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = to

    return edit


def drop(*path: Any) -> Edit:
    def edit(body: Body) -> None:
        place: Any = body
        for part in path[:-1]:
            place = place[part]
        del place[path[-1]]

    return edit


def rename(index: int, old: str, new: str) -> Edit:
    """The same wrong path in both manifests, so that only the rule about paths can refuse it."""

    def edit(body: Body) -> None:
        for output in body["outputs"][index]["outputs"]:
            output["files"] = [f.replace(old, new) for f in output["files"]]
        for artifact in body["artifacts"]:
            artifact["path"] = artifact["path"].replace(old, new)

    return edit


def swap_files(body: Body) -> None:
    a, b = body["outputs"][0]["outputs"][0], body["outputs"][1]["outputs"][0]
    a["files"], b["files"] = b["files"], a["files"]


def declared_twice(body: Body) -> None:
    body["outputs"][0]["outputs"].append(body["outputs"][0]["outputs"][0])


def without_primary(body: Body) -> None:
    rename(0, "vision.jpg", "other.jpg")(body)


FILES = ("outputs", 0, "outputs", 0, "files")
ARGS = ("outputs", 0, "args")
RULES: dict[str, Edit] = {
    "schema": put("schema_version", to="npa.cosmos3.ray-serve.batch.v2"),
    "schema missing": drop("schema_version"),
    "batch_size is true": put("batch_size", to=True),
    "batch_size as text": put("batch_size", to="4"),
    "guardrails as text": put("guardrails", to="yes"),
    "max_batch_size zero": put("max_batch_size", to=0),
    "source revision": put("server_source_revision", to="main"),
    "outputs missing": drop("outputs"),
    "model": put("model", to="Cosmos3-Super"),
    "request id": put("request_id", to="another"),
    "revision": put("framework_revision", to="0" * 40),
    "batch size": put("batch_size", to=3),
    "fewer outputs": drop("outputs", 3),
    "args is a list": put("outputs", 0, "args", to=[]),
    "name unknown": put(*ARGS, "name", to="z"),
    "name twice": put(*ARGS, "name", to="b"),
    "name is a number": put(*ARGS, "name", to=1),
    "status unknown": put("outputs", 0, "status", to="done"),
    "mode": put(*ARGS, "model_mode", to="text2video"),
    "mode is null": put(*ARGS, "model_mode", to=None),
    "mode unknown": put("outputs", 2, "args", "model_mode", to="text2audio"),
    "seed": put(*ARGS, "seed", to=2),
    "seed is true": put(*ARGS, "seed", to=True),
    "seed is a float": put(*ARGS, "seed", to=1.0),
    "seed missing": drop(*ARGS, "seed"),
    "frames is true": put(*ARGS, "num_frames", to=True),
    "frames zero": put(*ARGS, "num_frames", to=0),
    "frames as text": put(*ARGS, "num_frames", to="1"),
    "frames missing": drop(*ARGS, "num_frames"),
    "image became video": put(*ARGS, "num_frames", to=5),
    "video became image": put("outputs", 1, "args", "num_frames", to=1),
    "hint missing": put("outputs", 3, "args", "edge", to=None),
    "hint added": put(*ARGS, "depth", to={"control_path": None}),
    "no outputs": put("outputs", 0, "outputs", to=[]),
    "outputs is an object": put("outputs", 0, "outputs", to={}),
    "content is a list": put("outputs", 0, "outputs", 0, "content", to=[]),
    "no files": put(*FILES, to=[]),
    "files is text": put(*FILES, to="vision.jpg"),
    "file is a number": put(*FILES, 0, to=7),
    "path too short": rename(0, "a/vision.jpg", "vision.jpg"),
    "path of another sample": swap_files,
    "path climbs": rename(0, "a/vision.jpg", "a/../b/vision.jpg"),
    "path hidden": rename(0, "vision.jpg", ".vision.jpg"),
    "path absolute": put(*FILES, 0, to="/etc/passwd"),
    "path with blank": rename(0, "vision.jpg", "vision jpg"),
    "path with newline": rename(0, "vision.jpg", "vision.jpg\n"),
    "file twice": declared_twice,
    "primary missing": without_primary,
    "control missing": rename(3, "control_edge.mp4", "control_blur.mp4"),
    "reasoner text missing": rename(2, "reasoner_text.txt", "text.txt"),
    "artifact missing": drop("artifacts", 0),
    "artifact not declared": lambda body: body["artifacts"].append(
        {**body["artifacts"][0], "path": body["artifacts"][0]["path"] + "x"}
    ),
    "artifact twice": lambda body: body["artifacts"].append(body["artifacts"][0]),
    "artifact of another sample": put("artifacts", 0, "sample", to="b"),
    "artifact climbs": put("artifacts", 0, "path", to="../x/y"),
    "artifact absolute": put("artifacts", 0, "path", to="/x/y/z"),
    "artifact empty": put("artifacts", 0, "bytes", to=0),
    "artifact size is true": put("artifacts", 0, "bytes", to=True),
    "artifact hash upper case": put("artifacts", 0, "sha256", to="A" * 64),
    "artifact hash short": put("artifacts", 0, "sha256", to="a" * 63),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BaselineServer]:
    with BaselineServer(tmp_path_factory.mktemp("server"), faults=Faults(), roots=("s3://bucket",)) as made:
        yield made


@pytest.fixture
def submit(server: BaselineServer, tmp_path: Path) -> Callable[..., Any]:
    server.faults.__init__()  # type: ignore[misc]
    (tmp_path / "batch.json").write_text(json.dumps(BATCH))

    def run(**options: Any) -> Any:
        return submit_batch(
            input_path=str(tmp_path / "batch.json"),
            output_path=str(tmp_path / "out"),
            endpoint=server.endpoint,
            **options,
        )

    return run


def refused(server: BaselineServer, submit: Callable[..., Any], tmp_path: Path, state: Path) -> Cosmos3RayServeError:
    """Submit, expect a refusal, and check that nothing was downloaded or published but everything is kept."""
    before = len(server.log)
    with pytest.raises(Cosmos3RayServeError) as caught:
        submit()
    assert not [path for _, path, _ in server.log[before:] if path.startswith("/v1/artifacts/")]
    assert unpublished(tmp_path / "out")
    (journal,) = Journals(state).all()
    assert journal.run.state == "failed"
    assert journal.run.failure is not None and journal.run.failure["code"] == caught.value.stable_code
    assert journal.response
    assert str(journal.directory) in caught.value.remedy
    return caught.value


@pytest.mark.parametrize("rule", RULES)
def test_every_broken_rule_is_refused_before_download(
    server: BaselineServer, submit: Callable[..., Any], tmp_path: Path, own_state: Path, rule: str
) -> None:
    server.faults.edit_response = RULES[rule]
    error = refused(server, submit, tmp_path, own_state)
    expected = Cosmos3RayServeError if rule == "status unknown" else ContractViolation
    assert isinstance(error, expected)
    assert error.exit_code == ExitCode.SERVICE


@pytest.mark.parametrize("raw", [b"", b"[]", b"null", b"<html>", b"\xff", b'{"a":NaN}', b"[" * 100_000])
def test_what_is_no_json_object_is_refused(
    server: BaselineServer, submit: Callable[..., Any], tmp_path: Path, own_state: Path, raw: bytes
) -> None:
    server.faults.raw_response = raw
    posted = len(server.batches)
    for resume in (False, True):  # judged anew from the kept bytes, never posted anew
        with pytest.raises(ContractViolation):
            submit(resume=resume)
    assert unpublished(tmp_path / "out")
    assert len(server.batches) == posted + 1


def test_extra_fields_are_kept_in_the_published_bytes(
    server: BaselineServer, submit: Callable[..., Any], tmp_path: Path
) -> None:
    server.faults.edit_response = put("from_the_future", to={"x": 1})
    manifest = submit()
    assert manifest["status"] == "completed"
    assert json.loads((tmp_path / "out/response.json").read_bytes())["from_the_future"] == {"x": 1}


@pytest.mark.parametrize("status", ["error", "skip"])
def test_failed_samples_are_listed_and_nothing_is_published(
    server: BaselineServer, submit: Callable[..., Any], tmp_path: Path, own_state: Path, status: str
) -> None:
    server.faults.failing = {"b": status, "c": status}
    error = refused(server, submit, tmp_path, own_state)
    assert error.stable_code == "samples_failed"
    assert [e.field for e in error.errors] == ["samples[1]", "samples[2]"]
    assert "did not finish" in error.errors[0].message


def test_the_others_of_a_failed_batch_are_published_on_request(
    server: BaselineServer, submit: Callable[..., Any], tmp_path: Path, own_state: Path
) -> None:
    server.faults.failing = {"b": "error"}
    refused(server, submit, tmp_path, own_state)
    manifest = submit(resume=True, allow_partial=True)  # the response was kept, so even a baseline service suffices
    assert (manifest["status"], manifest["missing"]) == ("partial", ["b"])
    assert {a["sample"] for a in manifest["artifacts"]} == {"a", "c", "d"}
    assert [r["state"] for r in manifest["samples"]] == ["succeeded", "failed", "succeeded", "succeeded"]
    assert Journals(own_state).all() == []
    assert not list((tmp_path / "out").rglob("b/*"))


def test_a_partial_batch_without_any_result_is_not_published(
    server: BaselineServer, submit: Callable[..., Any], tmp_path: Path
) -> None:
    server.faults.failing = dict.fromkeys("abcd", "error")
    with pytest.raises(Cosmos3RayServeError, match="4 of 4 samples"):
        submit(allow_partial=True)
    assert unpublished(tmp_path / "out")


def test_a_wrong_flag_does_not_cost_the_result(
    server: BaselineServer, submit: Callable[..., Any], tmp_path: Path, own_state: Path
) -> None:
    server.faults.edit_response = put("framework_revision", to="reviewed-1")
    error = refused(server, submit, tmp_path, own_state)
    assert error.stable_code == "revision_mismatch"
    manifest = submit(resume=True, expected_revision="reviewed-1")
    assert manifest["framework_revision"] == "reviewed-1"
    assert server.batches[-1] == manifest["request_id"]
