"""The journal: whole or absent, one client at a time, nothing lost, nothing kept for ever."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cosmos3_serve.client import journal as module
from cosmos3_serve.client import journals as together
from cosmos3_serve.client.journal import Journal, Run, key_of
from cosmos3_serve.client.journals import Journals, default_root
from cosmos3_serve.errors import Conflict, NotFound, ServiceFailure, StorageFailure, UsageError


def run(output: str = "s3://bucket/out/", **changes: object) -> Run:
    fields: dict[str, object] = {
        "run_id": "run-1",
        "request_id": "req-1",
        "endpoint": "http://svc:8000",
        "input_path": "batch.json",
        "output_path": output,
        "expected_revision": "rev",
        "ledger": True,
        "created_at": 1.0,
    }
    return Run.model_validate(fields | changes)


@pytest.fixture
def journals(tmp_path: Path) -> Journals:
    made = Journals(tmp_path / "state")
    made.prepare()
    return made


def test_default_root_follows_xdg() -> None:
    assert default_root({"XDG_STATE_HOME": "/var/state"}) == Path("/var/state/cosmos3/batches")
    assert default_root({}) == Path.home() / ".local/state/cosmos3/batches"
    assert default_root({"XDG_STATE_HOME": "relative"}) == Path.home() / ".local/state/cosmos3/batches"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("s3://b/out", "s3://b/out/", True),
        ("s3://b/o%75t", "s3://B/out", True),
        ("/data/out", "/data/./x/../out/", True),
        ("s3://b/out", "s3://b/out2", False),
        ("s3://b/out", "/b/out", False),
    ],
)
def test_one_key_per_place(one: str, other: str, same: bool) -> None:
    assert (key_of(one) == key_of(other)) is same


def test_a_run_is_found_by_place_and_by_name(journals: Journals) -> None:
    journals.create(run(), b"body")
    found = journals.find("s3://bucket/out")
    assert found is not None
    assert (found.request, found.run.request_id, found.response) == (b"body", "req-1", None)
    for name in ("run-1", "req-1", found.directory.name):
        assert journals.find_named(name).run == found.run
    with pytest.raises(NotFound):
        journals.find_named("other")


def test_files_are_private(journals: Journals) -> None:
    made = journals.create(run(), b"body")
    assert made.directory.stat().st_mode & 0o077 == 0
    assert (made.directory / "request.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("stop", ["request.json", "run.json", "rename"])
def test_a_crash_while_creating_leaves_no_run(journals: Journals, monkeypatch: pytest.MonkeyPatch, stop: str) -> None:
    real, rename = module.write, Path.rename

    def write(path: Path, data: bytes) -> None:
        if path.name == stop:
            raise KeyboardInterrupt
        real(path, data)

    def renaming(self: Path, target: Path) -> Path:
        if stop == "rename" and self.name.startswith(".new-"):
            raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as patch:
        for where in (module, together):
            patch.setattr(where, "write", write)
        patch.setattr(Path, "rename", renaming)
        with pytest.raises(KeyboardInterrupt):
            journals.create(run(), b"body")
    assert journals.find("s3://bucket/out/") is None
    assert journals.all() == []
    assert journals.create(run(), b"body").request == b"body"


def test_states_and_response(journals: Journals) -> None:
    made = journals.create(run(ledger=False), b"body")
    assert not made.resumable
    made.save(state="submitted")
    made.keep_response(b"\x00exact")
    again = journals.find("s3://bucket/out/")
    assert again is not None
    assert (again.run.state, again.response, again.resumable) == ("ended", b"\x00exact", True)
    again.drop_response()
    assert (again.response, again.run.state) == (None, "submitted")


def test_a_torn_line_proves_nothing_and_hides_nothing(journals: Journals) -> None:
    made = journals.create(run(), b"body")
    assert made.proofs() == {}
    made.add_proof("r/a/vision.jpg", {"kind": "image"})
    with (made.directory / "proofs.jsonl").open("ab") as out:
        out.write(b'{"path": "r/b/vision.jpg", "med')
    made.add_proof("r/c/output.safetensors", {})
    assert made.proofs() == {"r/a/vision.jpg": {"kind": "image"}, "r/c/output.safetensors": {}}


def test_set_aside_keeps_the_record_without_the_spool(journals: Journals) -> None:
    made = journals.create(run(), b"body")
    made.keep_response(b"answer")
    (made.spool / "r/a").mkdir(parents=True)
    (made.spool / "r/a/vision.mp4").write_bytes(b"x" * 100)
    kept = journals.set_aside(made)
    assert journals.find("s3://bucket/out/") is None
    assert (kept / "response.json").read_bytes() == b"answer"
    assert not (kept / "spool").exists()


def test_a_damaged_record_is_reported(journals: Journals) -> None:
    made = journals.create(run(), b"body")
    (made.directory / "run.json").write_text("{")
    with pytest.raises(ServiceFailure, match="damaged"):
        journals.find("s3://bucket/out/")


def test_only_one_client_at_a_time_even_across_processes(journals: Journals) -> None:
    key = key_of("s3://bucket/out/")
    code = (
        "import sys; from pathlib import Path; from cosmos3_serve.client.journals import Journals\n"
        "with Journals(Path(sys.argv[1])).lock(sys.argv[2]):\n    print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(journals.root), key], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(Conflict) as caught, journals.lock(key):
            pass
        assert caught.value.stable_code == "run_in_progress"
        other.kill()  # a lock of a dead client must not outlive it
        other.wait()
        with journals.lock(key), journals.lock("another"):
            pass
    assert list((journals.root / "locks").iterdir()) == []


def long_ago(journal: Journal) -> None:
    then = time.time() - 40 * 86400
    os.utime(journal.directory / "run.json", (then, then))


def test_old_records_of_failed_runs_are_pruned_and_named(journals: Journals) -> None:
    old, fresh = journals.create(run("s3://bucket/old"), b"1"), journals.create(run("s3://bucket/new"), b"2")
    old.save(state="failed")
    long_ago(old)
    with journals.lock(old.directory.name):
        assert journals.prune() == []  # somebody works on it
    (line,) = journals.prune()
    assert line.startswith("removed") and "request req-1 (failed)" in line
    assert [j.directory for j in journals.all()] == [fresh.directory]


@pytest.mark.parametrize("state", ["prepared", "submitted", "ended"])
def test_an_unfinished_run_outlives_every_jump_of_the_clock(journals: Journals, state: str) -> None:
    kept = journals.create(run("s3://bucket/old"), b"1")
    kept.save(state=state)
    long_ago(kept)
    (line,) = journals.prune()
    assert line.startswith("kept the unfinished run") and "--resume" in line
    assert [j.directory for j in journals.all()] == [kept.directory]


def test_an_unusable_folder_names_the_flag(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="journal folder"):
        Journals(tmp_path / "file" / "state").prepare()


def test_a_full_disk_is_typed(journals: Journals, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.files, "write_all", full)
    with pytest.raises(StorageFailure, match="No space left"):
        journals.create(run(), b"body")


@pytest.mark.parametrize("call", ["mkdir", "open", "rename"])
def test_a_full_disk_is_no_wrong_input_whatever_meets_it(
    journals: Journals, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: str
) -> None:
    kept = journals.create(run(), b"body")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def lock() -> None:
        with journals.lock("k"):
            raise AssertionError

    steps: dict[str, list[Callable[[], object]]] = {
        "mkdir": [Journals(tmp_path / "other").prepare, lambda: journals.create(run(output="s3://b/new/"), b"")],
        "open": [lambda: kept.add_proof("a", {})],
        "rename": [lambda: kept.move("s3://b/moved/"), lambda: journals.set_aside(kept)],
    }
    monkeypatch.setattr(Path, call, full)
    if call == "open":
        monkeypatch.setattr(os, "open", full)
        steps[call].append(lock)
    for step in steps[call]:
        with pytest.raises(StorageFailure, match="No space left") as caught:
            step()
        assert caught.value.stable_code == "journal_unusable"
