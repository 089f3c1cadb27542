"""A client that fails after inference, against the real service; then recovery from its ledger and from its files."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.mangling import ManglingProxy
from support.s3 import LocalS3
from support.service import client, images

from cosmos3_serve.client.journals import Journals
from cosmos3_serve.client.recovery.recover import RecoverOrder, recover_batch
from cosmos3_serve.client.submit import submit_batch
from cosmos3_serve.errors import ContractViolation, Refusal
from cosmos3_serve.generator.local import LocalGenerator
from cosmos3_serve.review.build import build_review
from cosmos3_serve.trial.independent import verify_publication

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
SAMPLES = [*images("still", num_steps=2), *images("clip", num_frames=5, num_steps=2, seed=11)]


@pytest.fixture
def attempt(generator: LocalGenerator, s3_server: LocalS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The first attempt's journal: inference done, the answer damaged on the way, nothing published."""
    for name, value in s3_server.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NPA_COSMOS3_RAY_TOKEN", generator.token)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "batch.json").write_text(json.dumps({"samples": SAMPLES}))
    with ManglingProxy(generator.url) as proxy:
        with pytest.raises(ContractViolation):
            submit_batch(
                input_path=str(tmp_path / "batch.json"),
                output_path="s3://recover/first/",
                endpoint=proxy.endpoint,
                expected_revision=str(generator.ready["framework_revision"]),
            )
        assert len(proxy.mangled) == 1
    (journal,) = Journals(tmp_path / "state" / "cosmos3" / "batches").all()
    assert journal.run.state == "failed"
    return journal


def kept(journal: Any) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in journal.directory.rglob("*") if p.is_file()}


def test_recovered_from_the_ledger_and_from_a_copy(
    generator: LocalGenerator, s3_server: LocalS3, attempt: Any, tmp_path: Path
) -> None:
    request_id, before = attempt.run.request_id, kept(attempt)
    with client(generator) as http:
        true_response = http.get(f"/v1/batches/{request_id}/response").content
        batches = len(http.get("/v1/batches").json()["batches"])

    order = RecoverOrder(request_id=request_id, endpoint=generator.url, output_path="s3://recover/ledger/")
    from_ledger = recover_batch(order).manifest
    copy = tmp_path / "copy"
    shutil.copytree(generator.output_root / request_id, copy / request_id)
    order = RecoverOrder(request_id=request_id, source=str(copy), output_path="s3://recover/copy/")
    from_copy = recover_batch(order).manifest
    assert from_ledger is not None and from_copy is not None

    seen = {
        place: verify_publication("recover", place, s3_server.environ, tmp_path / "read" / place, status="recovered")
        for place in ("ledger", "copy")
    }
    assert (tmp_path / "read" / "ledger" / "response.json").read_bytes() == true_response
    assert "response.json" not in seen["copy"]["files"]
    assert seen["ledger"]["artifacts"] == seen["copy"]["artifacts"]
    assert [(a["path"].rsplit("/")[-1], a["frames"]) for a in seen["copy"]["artifacts"]] == [
        ("vision.mp4", 5),
        ("vision.jpg", 1),
    ]
    for place, manifest in (("ledger", from_ledger), ("copy", from_copy)):
        assert manifest == seen[place]["provenance"]
        assert (tmp_path / "read" / place / "request.json").read_bytes() == before["request.json"]
        said = manifest["recovery"]["first_attempt"]
        assert (said["state"], said["failure_code"]) == ("failed", "contract_violation")
        assert manifest["seeds"] == {"still": 7, "clip": 11}
    assert (from_ledger["weights"], from_ledger["guardrails"]) == ("random", False)
    assert (from_copy["weights"], from_copy["guardrails"]) == ("unknown", None), "the files alone do not say it"
    assert kept(attempt) == before, "the first attempt's record is as it was"
    with client(generator) as http:
        assert len(http.get("/v1/batches").json()["batches"]) == batches, "nothing was generated again"

    made = build_review(["s3://recover/ledger/", "s3://recover/copy/"], tmp_path / "review", environ=s3_server.environ)
    assert made.samples == 4

    (copy / request_id / "still" / "sample_args.json").write_text(
        (copy / request_id / "clip" / "sample_args.json").read_text()
    )
    with pytest.raises(Refusal) as caught:
        recover_batch(RecoverOrder(request_id=request_id, source=str(copy), output_path="s3://recover/more/"))
    assert caught.value.stable_code == "native_wrong_name"


def test_a_copy_of_the_whole_root_holds_the_ledger(
    generator: LocalGenerator, s3_server: LocalS3, attempt: Any, tmp_path: Path
) -> None:
    request_id = attempt.run.request_id
    order = RecoverOrder(request_id=request_id, source=str(generator.output_root), output_path="s3://recover/whole/")
    manifest = recover_batch(order).manifest
    assert manifest is not None
    assert (manifest["recovery"]["response"], manifest["weights"]) == ("ledger", "random")
    checked = {native["role"]: native["checked_against"] for native in manifest["recovery"]["natives"]}
    assert checked == {"args": "nothing", "outputs": "nothing", "artifact": "ledger"}
    verify_publication("recover", "whole", s3_server.environ, tmp_path / "read", status="recovered")
