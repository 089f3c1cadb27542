"""Two clients of one batch, each with its own journal: in both orders one true publication, which both return."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.flaky import Fault, FlakyProxy
from support.ledger_server import LedgerFaults, LedgerServer
from support.places import files_of
from support.s3 import LocalS3, boto, keys_of

from cosmos3_serve.client import follow, rerun, submission
from cosmos3_serve.client.publish import Publication
from cosmos3_serve.client.recovery.recover import RecoverOrder, recover_batch
from cosmos3_serve.client.submit import submit_batch
from cosmos3_serve.errors import Conflict, Cosmos3RayServeError, Incomplete
from cosmos3_serve.publication.audit import audit_place
from cosmos3_serve.publication.verify import verified_manifest
from cosmos3_serve.storage.location import open_store

SAMPLES = [
    {"name": name, "prompt": name, "num_frames": 1, "resolution": "256", "seed": 3, "model_mode": "text2image"}
    for name in ("s", "x")
]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LedgerServer]:
    monkeypatch.setattr(follow, "POLL_S", (0.02, 0.1))
    monkeypatch.setattr(submission, "LOOK_AGAIN_S", 0.05)
    monkeypatch.setattr(rerun, "RERUNS", 0)  # else A would run the interrupted sample again itself
    faults = LedgerFaults()
    faults.interrupted_once = {"x"}
    with LedgerServer(tmp_path / "server", faults=faults) as made:
        yield made


class Running(threading.Thread):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options, self.manifest = options, dict[str, Any]()
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.manifest = submit_batch(**self.options)
        except BaseException as error:
            self.error = error

    def done(self) -> dict[str, Any]:
        self.join(60)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.manifest


def until(seen: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not seen():
        assert time.monotonic() < end
        time.sleep(0.02)


def published(s3: LocalS3, bucket: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(
        boto(s3.environ).get_object(Bucket=bucket, Key="out/provenance.json")["Body"].read()
    )
    return record


@pytest.mark.parametrize("first", ["partial", "complete"])
async def test_whoever_begins_first_decides_and_both_say_what_is_stored(
    s3: LocalS3, server: LedgerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """A allows a partial publication and has the first answer; B runs the interrupted sample again, and has another."""
    bucket = f"two-{first}"
    s3.create_bucket(bucket)
    held = threading.Event()
    # partial: A is held at the seal; complete: A is held before it begins, and B meanwhile before it seals.
    at = "provenance.json" if first == "partial" else ".cosmos3-claims/0002.json"

    def slow(method: str, target: str, nth: int) -> Fault | None:
        if method == "PUT" and target.endswith(at) and not nth:
            held.set()
            return Fault.DELAY
        return None

    (tmp_path / "batch.json").write_text(json.dumps(SAMPLES))
    with FlakyProxy(s3.endpoint, slow, delay_s=2.5) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        options = {"output_path": f"s3://{bucket}/out/", "endpoint": server.endpoint}
        a = Running(**options, input_path=str(tmp_path / "batch.json"), allow_partial=True, journal_dir=tmp_path / "a")
        until(held.is_set)
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
        b = Running(**options, input_path="", resume=True, journal_dir=tmp_path / "b")
        manifests = [a.done(), b.done()]
    record = published(s3, bucket)
    assert manifests == [record, record]
    assert (record["status"], record["missing"]) == (("partial", ["x"]) if first == "partial" else ("completed", []))
    assert await verified_manifest(open_store(options["output_path"], s3.environ)) == record
    assert not [key for key in keys_of(s3.environ, bucket) if ".cosmos3" in key]
    named = {f"out/artifacts/{item['path']}" for item in record["artifacts"]}
    assert set(keys_of(s3.environ, bucket)) == named | {f"out/{n}.json" for n in ("request", "response", "provenance")}


def test_a_client_that_was_killed_at_the_seal_leaves_its_outcome_to_the_next(
    server: LedgerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client of the batch can publish that outcome, and no other; or all of it at another place."""
    (tmp_path / "batch.json").write_text(json.dumps(SAMPLES))
    out = tmp_path / "out"
    options = {"output_path": str(out), "endpoint": server.endpoint}

    async def killed(self: Any, provenance: bytes) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("cosmos3_serve.client.publish.Publication.seal", killed)
        submit_batch(**options, input_path=str(tmp_path / "batch.json"), allow_partial=True, journal_dir=tmp_path / "a")
    monkeypatch.setattr(submission, "WAIT_FOR_OTHER_S", 0.1)
    with pytest.raises(Incomplete) as caught:
        submit_batch(**options, input_path="", resume=True, journal_dir=tmp_path / "b")
    assert caught.value.stable_code == "publication_in_progress"
    (request_id,) = server.ledger
    assert f"--resume --run-id {request_id} --output-path" in caught.value.remedy
    moved = submit_batch(
        input_path="", resume=True, run_id=request_id, output_path=str(tmp_path / "new"), journal_dir=tmp_path / "b"
    )
    assert (moved["status"], moved["output_path"]) == ("completed", str(tmp_path / "new"))
    assert not (out / "provenance.json").exists()
    partial = submit_batch(**options, input_path="", resume=True, allow_partial=True, journal_dir=tmp_path / "c")
    assert (partial["status"], partial["missing"]) == ("partial", ["x"])


def test_an_unfinished_run_moves_to_a_new_place_and_gives_the_old_one_back(
    server: LedgerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def leave(self: follow.Follower) -> Any:
        raise Incomplete("left", code="deadline_exceeded")

    (tmp_path / "batch.json").write_text(json.dumps(SAMPLES[:1]))
    options = {"input_path": str(tmp_path / "batch.json"), "output_path": str(tmp_path / "old"), "run_id": "r"}
    with monkeypatch.context() as patch, pytest.raises(Incomplete):
        patch.setattr(follow.Follower, "wait", leave)
        submit_batch(**options, endpoint=server.endpoint)
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "provenance.json").write_text('{"request_id": "another"}')
    moving = {"input_path": "", "resume": True, "run_id": "r"}
    with pytest.raises(Conflict) as caught:
        submit_batch(**moving, output_path=str(taken))
    assert caught.value.stable_code == "publication_exists"
    manifest = submit_batch(**moving, output_path=str(tmp_path / "new"))
    assert (manifest["status"], manifest["published_uri"]) == ("completed", str(tmp_path / "new"))
    assert list(server.generated.values()) == [1]
    assert [p.name for p in taken.iterdir()] == ["provenance.json"]
    # the old place is free for another batch, which leaves nothing of the first claim behind
    again = submit_batch(**{**options, "run_id": "s"}, endpoint=server.endpoint)
    assert again["status"] == "completed" and not (tmp_path / "old" / ".cosmos3-claims").exists()


def test_a_run_that_failed_for_good_leaves_the_place_to_other_machines_and_may_come_back(
    server: LedgerServer, tmp_path: Path
) -> None:
    (tmp_path / "batch.json").write_text(json.dumps(SAMPLES[:1]))
    options = {"output_path": str(tmp_path / "out"), "endpoint": server.endpoint}
    new = {"input_path": str(tmp_path / "batch.json"), **options}
    server.faults.failing = {"s": "error"}
    for machine in ("a", "b"):
        with pytest.raises(Cosmos3RayServeError) as caught:
            submit_batch(**new, journal_dir=tmp_path / machine)
        assert caught.value.stable_code == "samples_failed"
    server.faults.failing = {}
    manifest = submit_batch(**new, journal_dir=tmp_path / "c")
    assert manifest["status"] == "completed"
    with pytest.raises(Conflict):  # too late: the place is another batch's
        submit_batch(**options, input_path="", resume=True, allow_partial=True, journal_dir=tmp_path / "a")


def test_a_recovery_beside_a_client_publishes_nothing_of_its_own(
    server: LedgerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client was killed once it had begun to publish; the recovery would publish other objects there."""
    (tmp_path / "batch.json").write_text(json.dumps(SAMPLES))
    out = tmp_path / "out"
    options = {"output_path": str(out), "endpoint": server.endpoint, "journal_dir": tmp_path / "a"}

    async def killed(self: Any, provenance: bytes) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("cosmos3_serve.client.publish.Publication.seal", killed)
        submit_batch(**options, input_path=str(tmp_path / "batch.json"), allow_partial=True)
    (request_id,) = server.ledger
    order = {
        "request_id": request_id,
        "endpoint": server.endpoint,
        "journal_dir": tmp_path / "a",
        "allow_partial": True,
    }
    before = files_of(out)
    with pytest.raises(Incomplete) as caught:
        recover_batch(RecoverOrder(output_path=str(out), **order))
    assert (caught.value.stable_code, files_of(out)) == ("publication_in_progress", before)
    partial = submit_batch(**options, input_path="", resume=True)
    assert partial["status"] == "partial"
    order["input_path"] = str(tmp_path / "batch.json")  # the journal went with the publication
    with pytest.raises(Conflict) as published:
        recover_batch(RecoverOrder(output_path=str(out), **order))
    assert published.value.stable_code == "publication_exists"
    recovered = recover_batch(RecoverOrder(output_path=str(tmp_path / "recovered"), **order))
    assert recovered.manifest is not None and recovered.manifest["status"] == "recovered"
    for place in (out, tmp_path / "recovered"):
        assert asyncio.run(audit_place(open_store(str(place)))).faults == []


def test_a_client_beside_a_recovery_returns_what_the_recovery_published(
    server: LedgerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "batch.json").write_text(json.dumps(SAMPLES))
    out = tmp_path / "out"
    options = {"output_path": str(out), "endpoint": server.endpoint, "journal_dir": tmp_path / "a"}
    original = Publication.begin

    async def late(self: Publication, outcome: str, response: bytes | None) -> None:
        """The recovery is done on another machine, between this client's download and its first write."""
        (request_id,) = server.ledger
        order = RecoverOrder(
            output_path=str(out), request_id=request_id, endpoint=server.endpoint, allow_partial=True,
            input_path=str(tmp_path / "posted.json"), journal_dir=tmp_path / "b",
        )  # fmt: skip
        (tmp_path / "posted.json").write_text(json.dumps(server.ledger[request_id].body))
        monkeypatch.setattr(Publication, "begin", original)
        made.append((await asyncio.to_thread(recover_batch, order)).manifest)
        await self.begin(outcome, response)

    made: list[Any] = []
    monkeypatch.setattr(Publication, "begin", late)
    manifest = submit_batch(**options, input_path=str(tmp_path / "batch.json"), allow_partial=True)
    assert manifest == made[0] == json.loads((out / "provenance.json").read_bytes())
    assert manifest["status"] == "recovered"
    assert asyncio.run(audit_place(open_store(str(out)))).faults == []
