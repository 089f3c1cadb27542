"""Recovery from a copied output directory: what qualifies is published as derived, a mismatch is refused by name."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.baseline_server import BaselineServer, Faults
from support.natives import BATCH, EDGE, REQUEST, edit, write_batch, write_sample
from support.s3 import LocalS3, boto, keys_of

from cosmos3_serve.client.journals import Journals
from cosmos3_serve.client.recovery import recover as recovery
from cosmos3_serve.client.recovery.qualify import MAX_JSON_BYTES
from cosmos3_serve.client.recovery.recover import RecoverOrder, recover_batch
from cosmos3_serve.client.submit import submit_batch
from cosmos3_serve.errors import Conflict, Cosmos3RayServeError, ExitCode, LimitExceeded, Refusal, UsageError
from cosmos3_serve.publication.audit import audit_place
from cosmos3_serve.publication.verify import verified_manifest
from cosmos3_serve.storage.location import open_store

Recover = Callable[..., Any]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_batch(tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def recover(tmp_path: Path, root: Path) -> Recover:
    (tmp_path / "batch.json").write_text(json.dumps(BATCH))

    def run(**options: Any) -> Any:
        given = {
            "input_path": str(tmp_path / "batch.json"),
            "request_id": REQUEST,
            "source": str(root),
            "output_path": str(tmp_path / "out"),
        }
        return recover_batch(RecoverOrder(**(given | options)))

    return run


def refused(recover: Recover, code: str, tmp_path: Path, **options: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        recover(**options)
    assert (caught.value.stable_code, caught.value.exit_code) == (code, ExitCode.REFUSED), caught.value.errors
    assert not (tmp_path / "out").exists(), "the output location was touched"
    return caught.value


# ---- what is published


@pytest.mark.parametrize("layout", ["framework", "diffusers"])
def test_a_copied_output_root_becomes_a_recovered_publication(
    recover: Recover, root: Path, tmp_path: Path, layout: Any
) -> None:
    shutil.rmtree(root)
    write_batch(root, layout=layout)
    (root / REQUEST / "inputs" / "a").mkdir(parents=True)
    (root / REQUEST / "inputs" / "a" / "0.png").write_bytes(b"conditioning")
    manifest = recover(run_id="again").manifest
    out = tmp_path / "out"
    files = sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file())
    declared = [f"artifacts/{REQUEST}/{n}" for n in ("a/vision.jpg", "b/vision.mp4", "c/reasoner_text.txt")]
    natives = [f"native/{REQUEST}/{s}/sample_{kind}.json" for s in "abc" for kind in ("args", "outputs")]
    assert files == sorted([*declared, *natives, "provenance.json", "request.json"]), "no response is invented"
    assert (manifest["status"], manifest["run_id"], manifest["missing"]) == ("recovered", "again", [])
    assert json.loads((out / "provenance.json").read_bytes()) == manifest
    recovery = manifest["recovery"]
    assert (recovery["source"], recovery["response"], recovery["request_from"]) == (
        *("output_directory", "none", "batch_file"),
    )
    assert recovery["ignored"] == [f"{REQUEST}/inputs/a/0.png"]
    assert recovery["first_attempt"] is None
    for native in recovery["natives"]:
        data = (root / native["path"]).read_bytes()
        assert (native["bytes"], native["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
        assert native["checked_against"] == "nothing"
    assert len(recovery["natives"]) == 9
    assert {name: manifest[name] for name in ("guardrails", "backend", "framework_revision", "max_batch_size")} == {
        **dict.fromkeys(("guardrails", "backend", "framework_revision", "max_batch_size"))
    }
    assert manifest["seeds"] == {"a": 1, "b": 2, "c": 3}
    assert [proof["kind"] for proof in manifest["media"]] == ["image", "video", "text"]
    assert str(root) not in json.dumps(manifest["structured_outputs"])
    assert asyncio.run(verified_manifest(open_store(str(out)))) == manifest
    assert asyncio.run(audit_place(open_store(str(out)))).faults == []


def test_a_copy_of_the_request_folder_alone_will_do(recover: Recover, root: Path) -> None:
    assert recover(source=str(root / REQUEST)).manifest["status"] == "recovered"


def test_from_s3_to_s3(recover: Recover, root: Path, s3: LocalS3) -> None:
    s3.create_bucket("kept")
    for path in root.rglob("*"):
        if path.is_file():
            boto(s3.environ).upload_file(str(path), "kept", f"copy/{path.relative_to(root).as_posix()}")
    manifest = recover(source="s3://kept/copy/", output_path="s3://kept/out/").manifest
    assert manifest["recovery"]["source"] == "output_prefix"
    keys = keys_of(s3.environ, "kept", "out/")
    assert "out/provenance.json" in keys and "out/response.json" not in keys and len(keys) == 3 + 6 + 2
    with pytest.raises(Conflict) as taken:
        recover(source="s3://kept/copy/", output_path="s3://kept/out/")
    assert taken.value.stable_code == "publication_exists"


def test_transfer_and_action_samples(recover: Recover, root: Path, tmp_path: Path) -> None:
    batch = [
        {"name": "t", "prompt": "s", "num_frames": 5, "resolution": "256", "edge": EDGE, "fps": 8},
        {"name": "w", "model_mode": "wam", "domain_name": "pusht", "vision_path": "s3://bucket/x.png"},
    ]
    (tmp_path / "batch.json").write_text(json.dumps(batch))
    shutil.rmtree(root)
    write_batch(root, batch)
    edit(root / REQUEST / "w" / "sample_args.json", "vision_path", to="/outputs/req-1/inputs/w/0.png")
    edit(root / REQUEST / "w" / "sample_outputs.json", "args", "vision_path", to="/outputs/req-1/inputs/w/0.png")
    manifest = recover().manifest
    assert len(manifest["artifacts"]) == 3
    by_name = {result["args"]["name"]: result for result in manifest["structured_outputs"]}
    assert by_name["w"]["args"]["vision_path"] == "s3://bucket/x.png", "as it was asked for"
    assert by_name["w"]["outputs"][0]["content"]["action"]


def test_a_dry_run_reports_and_changes_nothing(recover: Recover, root: Path, tmp_path: Path) -> None:
    outcome = recover(dry_run=True)
    assert outcome.manifest is None and outcome.refusal is None
    assert outcome.report["status"] == "qualified"
    assert [s["state"] for s in outcome.report["samples"]] == ["qualified"] * 3
    shown = {f["path"]: f["decoded"] for s in outcome.report["samples"] for f in s["files"]}
    assert shown[f"{REQUEST}/b/vision.mp4"] == {"kind": "video", "width": 320, "height": 192, "frames": 5}
    edit(root / REQUEST / "a" / "sample_args.json", "seed", to=9)
    bad = recover(dry_run=True)
    assert bad.refusal.stable_code == bad.report["code"] == "native_wrong_seed"
    assert [s["state"] for s in bad.report["samples"]] == ["refused", "qualified", "qualified"]
    assert not (tmp_path / "out").exists()


# ---- what is refused, each under its own code


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def link(path: Path) -> None:
    data = path.read_bytes()
    (path.parents[2] / "elsewhere").write_bytes(data)
    path.unlink()
    path.symlink_to(path.parents[2] / "elsewhere")


def link_folder(home: Path) -> None:
    shutil.move(home / "a", home.parent / "moved")
    (home / "a").symlink_to(home.parent / "moved")


def both(home: Path, *keys: Any, to: Any) -> None:
    edit(home / "sample_args.json", *keys, to=to)
    edit(home / "sample_outputs.json", "args", *keys, to=to)


def oversized(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(MAX_JSON_BYTES + 1)


def outputs(sample: str, *keys: Any, to: Any) -> Callable[[Path], None]:
    return lambda home: edit(home / sample / "sample_outputs.json", *keys, to=to)


def files(*paths: str) -> Callable[[Path], None]:
    """Sample a's only output declares these; `~` is the request's own directory."""
    return lambda home: edit(
        home / "a/sample_outputs.json", "outputs", 0, "files", to=[path.replace("~", str(home)) for path in paths]
    )


def swap_folders(home: Path) -> None:
    for old, new in (("a", "t"), ("b", "a"), ("t", "b")):
        (home / old).rename(home / new)


def longer(home: Path) -> None:
    shutil.copy(home.parent / "long.mp4", home / "b/vision.mp4")


MISMATCHES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "wrong seed": ("native_wrong_seed", lambda home: both(home / "a", "seed", to=9)),
    "seed is true": ("native_wrong_seed", lambda home: both(home / "a", "seed", to=True)),
    "seed differs in one record": ("native_wrong_seed", outputs("a", "args", "seed", to=4)),
    "wrong name": ("native_wrong_name", lambda home: both(home / "a", "name", to="b")),
    "folders swapped": ("native_wrong_name", swap_folders),
    "foreign request": ("native_foreign_request", lambda home: both(home / "a", "output_dir", to="/outputs/req-2/a")),
    "output_dir missing": ("native_foreign_request", lambda home: both(home / "a", "output_dir", to=None)),
    "wrong mode": ("native_wrong_mode", lambda home: both(home / "a", "model_mode", to="text2video")),
    "wrong frames": ("native_wrong_frames", lambda home: both(home / "b", "num_frames", to=9)),
    "video became image": ("native_wrong_frames", lambda home: both(home / "b", "num_frames", to=1)),
    "another prompt": ("native_wrong_args", lambda home: both(home / "a", "prompt", to="a green ball")),
    "another hint": ("native_wrong_hints", lambda home: both(home / "b", "edge", to={"control_path": None})),
    "records disagree": ("native_records_disagree", outputs("c", "args", "output_dir", to="/x/req-1/c")),
    "media missing": ("native_file_missing", lambda home: (home / "a/vision.jpg").unlink()),
    "args missing": ("native_file_missing", lambda home: (home / "a/sample_args.json").unlink()),
    "primary not declared": ("native_file_missing", files(f"{REQUEST}/a/sample_args.json")),
    "media truncated": ("native_media_invalid", lambda home: truncate(home / "b/vision.mp4")),
    "image truncated": ("native_media_invalid", lambda home: truncate(home / "a/vision.jpg")),
    "media empty": ("native_media_invalid", lambda home: (home / "a/vision.jpg").write_bytes(b"")),
    "a video of other frames": ("native_media_invalid", longer),
    "media is a link": ("native_symlink", lambda home: link(home / "a/vision.jpg")),
    "record is a link": ("native_symlink", lambda home: link(home / "a/sample_args.json")),
    "folder is a link": ("native_symlink", link_folder),
    "a pipe": ("native_not_regular", lambda home: os.mkfifo(home / "a/debug.bin")),
    "extra file": ("native_extra_file", lambda home: (home / "a/other.jpg").write_bytes(b"x")),
    "extra sample": ("native_extra_file", lambda home: shutil.copytree(home / "a", home / "z")),
    "extra file beside": ("native_extra_file", lambda home: (home / "notes.txt").write_text("x")),
    "odd name": ("native_path_escape", lambda home: (home / "a/.hidden").write_text("x")),
    "path climbs": ("native_path_escape", files("~/a/../b/vision.mp4")),
    "path elsewhere": ("native_path_escape", files("/etc/passwd")),
    "path of another sample": ("native_path_escape", files(f"{REQUEST}/b/vision.mp4")),
    "json oversized": ("native_json_oversized", lambda home: oversized(home / "a/sample_outputs.json")),
    "json broken": ("native_json_invalid", lambda home: truncate(home / "a/sample_args.json")),
    "json deep": ("native_json_invalid", lambda home: (home / "a/sample_args.json").write_text("[" * 100_000)),
    "json is a list": ("native_json_invalid", lambda home: (home / "a/sample_args.json").write_text("[]")),
    "json with NaN": ("native_json_invalid", lambda home: (home / "a/sample_args.json").write_text('{"a": NaN}')),
    "no SampleOutputs": ("native_outputs_invalid", outputs("a", "more", to=1)),
    "no outputs": ("native_outputs_invalid", outputs("a", "outputs", to=[])),
}  # fmt: skip


@pytest.mark.parametrize("what", MISMATCHES)
def test_every_mismatch_is_refused_by_name(recover: Recover, root: Path, tmp_path: Path, what: str) -> None:
    code, break_it = MISMATCHES[what]
    long = write_sample(tmp_path / "long", {**BATCH[1], "num_frames": 9})
    shutil.copy(long / "vision.mp4", root / "long.mp4")
    break_it(root / REQUEST)
    error = refused(recover, code, tmp_path, allow_partial=True)  # which excuses what is missing, not what is wrong
    assert code in error.errors[0].message


def test_all_findings_are_listed(recover: Recover, root: Path, tmp_path: Path) -> None:
    both(root / REQUEST / "a", "seed", to=9)
    both(root / REQUEST / "b", "name", to="a")
    error = refused(recover, "native_wrong_seed", tmp_path)
    assert [e.field for e in error.errors] == ["samples[0]", "samples[1]"]


def test_a_partial_batch_needs_a_word(recover: Recover, root: Path, tmp_path: Path) -> None:
    (root / REQUEST / "a" / "sample_outputs.json").unlink()
    (root / REQUEST / "a" / "vision.jpg").unlink()  # the engine was stopped before it ended
    edit(root / REQUEST / "c" / "sample_outputs.json", "status", to="error")
    error = refused(recover, "native_batch_partial", tmp_path)
    assert [e.field for e in error.errors] == ["samples[0]", "samples[2]"]
    manifest = recover(allow_partial=True).manifest
    assert (manifest["status"], manifest["missing"]) == ("recovered", ["a", "c"])
    assert [s["state"] for s in manifest["samples"]] == ["failed", "succeeded", "failed"]
    assert [s["code"] for s in manifest["samples"]] == ["native_sample_missing", None, "native_sample_failed"]
    assert not list((tmp_path / "out/artifacts").rglob("c/*"))


def test_a_sample_that_never_began_has_failed_and_is_no_mismatch(recover: Recover, root: Path, tmp_path: Path) -> None:
    """As the diffusers engine leaves one that was cancelled before its first step: outputs without args."""
    home = root / REQUEST / "a"
    for name in ("sample_args.json", "vision.jpg"):
        (home / name).unlink()
    refused(recover, "native_file_missing", tmp_path)  # a success without its args is no success
    edit(home / "sample_outputs.json", "status", to="error")
    refused(recover, "native_batch_partial", tmp_path)
    assert recover(allow_partial=True).manifest["missing"] == ["a"]


def test_nothing_at_all_is_never_published(recover: Recover, root: Path, tmp_path: Path) -> None:
    for sample in "abc":
        edit(root / REQUEST / sample / "sample_outputs.json", "status", to="skip")
    refused(recover, "native_batch_partial", tmp_path, allow_partial=True)
    shutil.rmtree(root / REQUEST)
    (root / "other").mkdir()
    (root / "other" / "x").write_text("x")
    refused(recover, "native_outputs_missing", tmp_path)  # a root that holds other requests only
    shutil.rmtree(root / "other")
    refused(recover, "native_outputs_missing", tmp_path)


def test_hashes_made_where_the_outputs_lay(recover: Recover, root: Path, tmp_path: Path) -> None:
    sums = tmp_path / "sums.txt"

    def write(paths: list[Path]) -> None:
        lines = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  ./{p.relative_to(root)}" for p in paths]
        sums.write_text("\n".join(lines))

    files = [p for p in root.rglob("*") if p.is_file()]
    write(files)
    natives = recover(hashes=str(sums)).manifest["recovery"]["natives"]
    assert {native["checked_against"] for native in natives} == {"hashes"}
    shutil.rmtree(tmp_path / "out")
    (root / REQUEST / "a" / "vision.jpg").write_bytes((root / REQUEST / "a" / "vision.jpg").read_bytes() + b"\0")
    refused(recover, "native_media_altered", tmp_path, hashes=str(sums))
    write([p for p in files if p.name != "vision.mp4"])
    refused(recover, "native_hash_unknown", tmp_path, hashes=str(sums))


def test_media_that_change_during_the_recovery(
    recover: Recover, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cosmos3_serve.client.recovery import sources

    original = sources.DirectoryQualifier.run

    async def then_change(self: Any, *args: Any) -> Any:
        found = await original(self, *args)
        (root / REQUEST / "a" / "vision.jpg").write_bytes(b"x" * 100)
        return found

    monkeypatch.setattr(sources.DirectoryQualifier, "run", then_change)
    refused(recover, "native_media_altered", tmp_path)


def test_bounds(recover: Recover, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LimitExceeded, match="spool"):
        recover(spool_bytes=100)
    deep = root / REQUEST / "a" / "/".join("x" * 30)
    deep.mkdir(parents=True)
    with pytest.raises(LimitExceeded, match="deeper"):
        recover()
    monkeypatch.setattr("cosmos3_serve.client.recovery.native_files.MAX_FILES", 3)
    shutil.rmtree(root / REQUEST / "a" / "x")
    with pytest.raises(LimitExceeded, match="more than 3 files"):
        recover()


# ---- which request it was


def test_the_original_request_must_be_known(recover: Recover, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as unnamed:
        recover(request_id="")
    assert "--request-id" in unnamed.value.remedy
    with pytest.raises(UsageError) as unknown:
        recover(input_path="")
    assert unknown.value.stable_code == "no_original_request"
    (tmp_path / "batch.json").write_text(json.dumps({"samples": BATCH, "request_id": "req-2"}))
    with pytest.raises(Conflict):
        recover()


# ---- after a real first attempt


def test_a_malformed_response_then_the_copied_outputs(tmp_path: Path, own_state: Path) -> None:
    """The first attempt fails in validation; its record stays byte for byte, and is what the recovery names."""
    (tmp_path / "batch.json").write_text(json.dumps(BATCH))
    with BaselineServer(tmp_path / "server", faults=Faults(raw_response=b'{"cut": ')) as server:
        with pytest.raises(Cosmos3RayServeError):
            submit_batch(
                input_path=str(tmp_path / "batch.json"), output_path=str(tmp_path / "out"), endpoint=server.endpoint
            )
        (request_id,) = server.batches
        for sample in BATCH:  # the support server keeps no native records; the engine below it would
            write_sample(server.root, sample, request_id=request_id)
        (journal,) = Journals(own_state).all()
        before = {p: p.read_bytes() for p in journal.directory.rglob("*") if p.is_file()}
        assert before
        order = RecoverOrder(source=str(server.root), request_id=request_id, output_path=str(tmp_path / "out"))
        manifest = recover_batch(order).manifest
    assert manifest is not None
    attempt = manifest["recovery"]["first_attempt"]
    assert (attempt["state"], attempt["failure_code"]) == ("failed", "contract_violation")
    assert attempt["response_sha256"] == hashlib.sha256(b'{"cut": ').hexdigest()
    assert manifest["recovery"]["request_from"] == "journal"
    assert (tmp_path / "out/request.json").read_bytes() == journal.request
    assert not (tmp_path / "out/response.json").exists(), "neither the broken answer nor an invented one"
    assert {p: p.read_bytes() for p in journal.directory.rglob("*") if p.is_file()} == before
    # Resuming afterwards gives the recovered publication and still keeps the record.
    found = submit_batch(input_path="", output_path=str(tmp_path / "out"), endpoint=server.endpoint, resume=True)
    assert found["status"] == "recovered"
    assert journal.directory.exists()


def test_a_spool_in_use_is_never_taken_for_an_abandoned_one(tmp_path: Path) -> None:
    abandoned = tmp_path / "recover" / "spool-killed"
    abandoned.mkdir(parents=True)
    (abandoned / "media.mp4").write_bytes(b"left by a kill")
    with recovery._spool(tmp_path) as first:
        assert not abandoned.exists()
        os.utime(first, (0, 0))
        with recovery._spool(tmp_path) as second:
            assert Path(first).is_dir() and second != first
    assert list((tmp_path / "recover").iterdir()) == []
