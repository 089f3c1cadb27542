"""The audit: one publication by the real client, then every way to be wrong, each named."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.flaky import Fault, FlakyProxy
from support.ledger_server import LedgerFaults, LedgerServer
from support.memory_store import Killed
from support.s3 import LocalS3, boto

from cosmos3_serve.cli import main
from cosmos3_serve.client.submit import submit_batch
from cosmos3_serve.errors import ExitCode, UsageError
from cosmos3_serve.publication import audit_all as audits
from cosmos3_serve.publication.audit import Audit, Outcome, audit
from cosmos3_serve.publication.audit_all import audit_all, places_below
from cosmos3_serve.publication.decode import Decoder
from cosmos3_serve.storage.location import open_store

SAMPLES = [
    {"name": "a", "model_mode": "text2image", "prompt": "p", "seed": 17, "resolution": "256"},
    {"name": "b", "prompt": "q", "num_frames": 5, "resolution": "256", "seed": 3},
    {"name": "c", "model_mode": "reasoner", "prompt": "r"},
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folders `whole` and `partial`, published by the client."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "batch.json").write_text(json.dumps(SAMPLES))
    with pytest.MonkeyPatch.context() as patch, LedgerServer(folder / "server", faults=LedgerFaults()) as server:
        patch.setenv("NPA_COSMOS3_RAY_TOKEN", "support-token")
        options = {"input_path": str(folder / "batch.json"), "endpoint": server.endpoint, "journal_dir": folder / "j"}
        submit_batch(output_path=str(folder / "whole"), **options)
        server.faults.failing = {"b": "error"}
        submit_batch(output_path=str(folder / "partial"), allow_partial=True, **options)
    yield folder


@pytest.fixture
def whole(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "whole", tmp_path / "whole"))


def cosmos3(words: list[str]) -> int:
    return main.run(main.build(), "cosmos3", words)


def audited(folder: Path) -> Audit:
    async def run() -> Audit:
        async with Decoder(processes=1) as decoder:  # a start of each costs more than what it decodes here
            return await audit(open_store(str(folder)), decoder)

    return asyncio.run(run())


def record_of(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "provenance.json").read_bytes())
    return record


def edit(folder: Path, change: Callable[[dict[str, Any]], Any], name: str = "provenance.json") -> None:
    data = json.loads((folder / name).read_bytes())
    change(data)
    (folder / name).write_text(json.dumps(data))


def sealed_again(folder: Path) -> None:
    """The hashes of the record follow the files: what is left is only what the bytes' meaning shows."""
    record = record_of(folder)
    for name, field in (("request.json", "request_sha256"), ("response.json", "response_sha256")):
        record[field] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    for item in record["artifacts"]:
        data = (folder / "artifacts" / item["path"]).read_bytes()
        item |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "provenance.json").write_text(json.dumps(record))


def test_what_the_client_publishes_is_intact(made: Path) -> None:
    found = audited(made / "whole")
    assert (found.outcome, found.status, found.samples, found.artifacts) == (Outcome.INTACT, "completed", 3, 3)
    assert found.faults == [] and found.bytes == sum(
        p.stat().st_size for p in (made / "whole").rglob("*") if p.is_file()
    )
    partial = audited(made / "partial")
    assert (partial.outcome, partial.status, partial.artifacts) == (Outcome.INTACT, "partial", 2)


def only(folder: Path, name: str) -> Path:
    (path,) = folder.rglob(name)
    return path


ALTERED: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "a byte of a picture": (lambda f: only(f, "vision.jpg").write_bytes(only(f, "vision.jpg").read_bytes()[:-1] + b"x"),
                            "vision.jpg", "sha256_differs"),
    "a clip cut short": (lambda f: only(f, "vision.mp4").write_bytes(only(f, "vision.mp4").read_bytes()[:-9]),
                         "vision.mp4", "size_differs"),
    "an artifact gone": (lambda f: only(f, "vision.mp4").unlink(), "vision.mp4", "missing"),
    "the request gone": (lambda f: (f / "request.json").unlink(), "request.json", "missing"),
    "the response gone": (lambda f: (f / "response.json").unlink(), "response.json", "missing"),
    "the request altered": (lambda f: (f / "request.json").write_bytes((f / "request.json").read_bytes() + b" "),
                            "request.json", "sha256_differs"),
    "the response altered": (lambda f: (f / "response.json").write_bytes((f / "response.json").read_bytes() + b" "),
                             "response.json", "sha256_differs"),
    "another object": (lambda f: (f / "artifacts" / "extra.bin").write_bytes(b"x"), "extra.bin", "undeclared"),
    "no hash of the request": (lambda f: edit(f, lambda r: r.update(request_sha256="")), "request.json", "unhashed"),
    "another shape": (lambda f: edit(f, lambda r: r.pop("artifacts")), "provenance.json", "invalid_record"),
    "another status": (lambda f: edit(f, lambda r: r.update(status="partial")), "provenance.json", "status"),
    "another engine": (lambda f: edit(f, lambda r: r.update(framework_revision="x")), "response.json",
                       "response_violates"),
    "guardrails": (lambda f: edit(f, lambda r: r.update(guardrails=not r["guardrails"])), "provenance.json",
                   "record_differs"),
    "weights": (lambda f: edit(f, lambda r: r.update(weights="pretrained")), "provenance.json", "record_differs"),
    "another id": (lambda f: edit(f, lambda r: r.update(request_id="other")), "provenance.json", "record_differs"),
    "another seed": (lambda f: edit(f, lambda r: r["seeds"].update(a=18)), "provenance.json", "seed_differs"),
    "a sample hidden": (lambda f: (edit(f, lambda r: r["artifacts"].pop()), only(f, "reasoner_text.txt").unlink()),
                        "provenance.json", "coverage"),
    "called missing": (lambda f: edit(f, lambda r: r.update(missing=["a"])), "provenance.json", "coverage"),
    "a result edited": (lambda f: edit(f, lambda r: r["structured_outputs"][0]["args"].update(num_steps=99)),
                        "provenance.json", "record_differs"),
    "another size said": (lambda f: edit(f, lambda r: r["media"][0].update(width=1)), "vision", "media_differs"),
}  # fmt: skip
CONSISTENT: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "a picture that is none": (lambda f: only(f, "vision.jpg").write_bytes(b"not a picture"), "vision.jpg",
                               "undecodable"),
    "a clip of another length": (lambda f: edit(f, lambda r: r["structured_outputs"][1]["args"].update(num_frames=9)),
                                 "vision.mp4", "undecodable"),
    "bytes that the response does not name": (lambda f: only(f, "reasoner_text.txt").write_bytes(b"other"),
                                              "reasoner_text.txt", "response_differs"),
    "a request of other samples": (lambda f: edit(f, lambda r: r["samples"].pop(), "request.json"), "provenance.json",
                                   "record_differs"),
    "a request that is none": (lambda f: (f / "request.json").write_text("[]"), "request.json", "invalid_request"),
}  # fmt: skip


@pytest.mark.parametrize("what", [*ALTERED, *CONSISTENT])
def test_every_fault_is_named(whole: Path, what: str) -> None:
    change, name, code = {**ALTERED, **CONSISTENT}[what]
    change(whole)
    if what in CONSISTENT:
        sealed_again(whole)
    found = audited(whole)
    assert found.outcome is Outcome.FAULTY
    assert [fault for fault in found.faults if fault.name.rpartition("/")[2].startswith(name) and fault.code == code], (
        found.faults
    )


def test_all_faults_are_listed_not_only_the_first(whole: Path) -> None:
    for change, _, _ in (ALTERED["an artifact gone"], ALTERED["another object"], ALTERED["another seed"]):
        change(whole)
    assert {fault.code for fault in audited(whole).faults} >= {"missing", "undeclared", "seed_differs"}


def test_an_unfinished_place_is_neither_intact_nor_faulty(tmp_path: Path, whole: Path) -> None:
    (whole / "provenance.json").write_bytes(b"")  # as older clients left it where a file system has no hard links
    assert audited(whole).outcome is Outcome.UNFINISHED
    (tmp_path / "claimed" / ".cosmos3-claims").mkdir(parents=True)
    (tmp_path / "claimed" / ".cosmos3-claims" / "0001.json").write_text("{}")
    assert audited(tmp_path / "claimed").outcome is Outcome.UNFINISHED
    assert audited(tmp_path / "nothing").outcome is Outcome.ABSENT


def test_the_command_says_it_to_people_and_programs(
    whole: Path, made: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cosmos3(["batch", "audit", str(whole)]) == ExitCode.DONE
    assert f"intact {whole}/ (completed, 3 samples, 3 artifacts" in capsys.readouterr().out
    only(whole, "vision.mp4").unlink()
    assert cosmos3(["batch", "audit", str(whole), "--json"]) == ExitCode.SERVICE
    said = json.loads(capsys.readouterr().out)
    assert said["outcome"] == "faulty" and {f["code"] for f in said["faults"]} == {"missing"}
    assert cosmos3(["batch", "audit", str(whole)]) == ExitCode.SERVICE
    assert "vision.mp4 is missing (missing)" in capsys.readouterr().out
    assert cosmos3(["batch", "audit", str(tmp_path / "nothing")]) == ExitCode.INPUT
    assert cosmos3(["batch", "audit"]) == ExitCode.INPUT
    (whole / "provenance.json").unlink()
    assert cosmos3(["batch", "audit", str(whole)]) == ExitCode.INCOMPLETE


# ---- many ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def many(made: Path, tmp_path: Path) -> Path:
    root = tmp_path / "many"
    for name in ("one", "two", "deep/artifacts/three"):
        shutil.copytree(made / "whole", root / name)
    shutil.copytree(made / "partial", root / "four")
    (root / "begun").mkdir()
    (root / "begun" / "request.json").write_text("{}")
    return root


async def test_places_are_found_at_any_depth_and_samples_are_none(many: Path) -> None:
    inside = many / "one" / "artifacts" / "x" / "a"
    inside.mkdir(parents=True)
    (inside / "provenance.json").write_text("{}")
    assert await places_below(open_store(str(many))) == ["begun", "deep/artifacts/three", "four", "one", "two"]
    assert await places_below(open_store(str(many / "two"))) == [""]


async def test_an_interrupted_audit_continues_from_its_report(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, root, read = tmp_path / "report.jsonl", open_store(str(many)), list[str]()
    real = audits.audit

    async def killed_at_the_third(place: Any, decoder: Any, *, reads: int) -> Audit:
        if len(read) == 2:
            raise Killed
        read.append(str(place))
        return await real(place, decoder, reads=reads)

    with monkeypatch.context() as patch:
        patch.setattr(audits, "audit", killed_at_the_third)
        with pytest.raises(Killed):
            await audit_all(root, report, jobs=1)
    with report.open("a") as out:
        out.write('{"place": "torn')
    only(many / "two", "vision.jpg").unlink()
    told: list[tuple[int, int]] = []
    found = await audit_all(root, report, told=lambda place, done, total: told.append((done, total)))
    assert (found.known, len(found.audits)) == (2, 5)
    assert found.counts() == {"intact": 3, "faulty": 1, "unfinished": 1, "absent": 0}
    assert told[-1] == (5, 5)
    again = await audit_all(root, report)
    assert again.known == 5 and [a.as_dict() for a in again.audits] == [a.as_dict() for a in found.audits]
    with pytest.raises(UsageError) as caught:
        await audit_all(open_store(str(many / "one")), report)
    assert caught.value.stable_code == "invalid_report"


def test_the_command_for_all(many: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cosmos3(["batch", "audit", "--all", str(many)]) == ExitCode.INCOMPLETE
    said = capsys.readouterr().out
    assert "5 publications: 4 intact, 1 unfinished" in said and f"unfinished {many}/begun/" in said
    only(many / "one", "vision.jpg").write_bytes(b"")
    assert cosmos3(["batch", "audit", "--all", str(many), "--json"]) == ExitCode.SERVICE
    result = json.loads(capsys.readouterr().out)
    assert (result["faulty"], result["intact"], len(result["findings"])) == (1, 3, 2)


def test_in_a_bucket_and_what_cannot_be_read_is_not_called_intact(
    s3_server: LocalS3, made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in s3_server.environ.items():
        monkeypatch.setenv(name, value)
    s3_server.create_bucket("audit")
    for path in sorted((made / "whole").rglob("*")):
        if path.is_file():
            for place in ("x/one", "x/two"):
                key = f"{place}/{path.relative_to(made / 'whole').as_posix()}"
                boto(s3_server.environ).put_object(Bucket="audit", Key=key, Body=path.read_bytes())
    assert cosmos3(["batch", "audit", "s3://audit/x/one/", "--json"]) == ExitCode.DONE
    capsys.readouterr()

    def denied(method: str, target: str, nth: int) -> Fault | None:
        return Fault.DENIED if "/x/two/response.json" in target else None

    with FlakyProxy(s3_server.endpoint, denied) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        assert cosmos3(["batch", "audit", "--all", "s3://audit/x/", "--json"]) == ExitCode.SERVICE
    result = json.loads(capsys.readouterr().out)
    assert (result["intact"], list(result["unread"])) == (1, ["s3://audit/x/two/"])


def test_a_place_whose_listing_hides_objects_is_unread(
    s3_server: LocalS3, made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every listing of one place is an error document with status 200, which reads as an empty one."""
    for name, value in s3_server.environ.items():
        monkeypatch.setenv(name, value)
    s3_server.create_bucket("hidden")
    for path in sorted((made / "whole").rglob("*")):
        if path.is_file():
            key = f"x/two/{path.relative_to(made / 'whole').as_posix()}"
            boto(s3_server.environ).put_object(Bucket="hidden", Key=key, Body=path.read_bytes())

    def no_listing(method: str, target: str, nth: int) -> Fault | None:
        return Fault.ERROR_200 if "list-type" in target and "two" in target else None

    with FlakyProxy(s3_server.endpoint, no_listing) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        assert cosmos3(["batch", "audit", "--all", "s3://hidden/x/", "--json"]) == ExitCode.SERVICE
        assert "lacks provenance.json" in json.loads(capsys.readouterr().out)["unread"]["s3://hidden/x/two/"]
        assert cosmos3(["batch", "audit", "s3://hidden/x/two/"]) == ExitCode.SERVICE
        assert cosmos3(["batch", "audit", "--all", "s3://hidden/x/two/"]) == ExitCode.INPUT  # nothing is called intact


@pytest.mark.parametrize("lost", ["removed", "replaced", ""])
async def test_parts_are_compared_with_the_index_of_their_queue(made: Path, tmp_path: Path, lost: str) -> None:
    root = tmp_path / "queue"
    for name in ("00001", "00002"):
        shutil.copytree(made / "whole", root / "parts" / name)
    digest = hashlib.sha256((root / "parts/00001/provenance.json").read_bytes()).hexdigest()
    parts = [{"name": name, "manifest_sha256": digest} for name in ("00001", "00002")]
    parts.append({"name": "00003", "manifest_sha256": None})  # nothing of it was published
    (root / "index.json").write_text(json.dumps({"schema_version": "cosmos3.queue.index.v1", "parts": parts}))
    if lost:
        shutil.rmtree(root / "parts/00002")
    if lost == "replaced":
        shutil.copytree(made / "partial", root / "parts/00002")
    found = await audit_all(open_store(str(root)))
    faults = [(result.place.rstrip("/")[-5:], fault.code) for result in found.audits for fault in result.faults]
    assert faults == {"removed": [("00002", "missing")], "replaced": [("00002", "index_differs")]}.get(lost, [])
