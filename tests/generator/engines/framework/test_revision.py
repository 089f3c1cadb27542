"""The proof of the revision: what git says, what the files are, and what differs."""

import hashlib
import json
from pathlib import Path

import pytest

from cosmos3_serve.contract.wire import FRAMEWORK_REVISION
from cosmos3_serve.errors import StartRefused
from cosmos3_serve.generator.engines.framework import revision
from cosmos3_serve.generator.engines.framework.revision import pinned_files, prove

OTHER = "f" * 40


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the pinned tree: three files, and a list of their hashes."""
    folder = tmp_path / "site" / "cosmos_framework"
    (folder / "inference").mkdir(parents=True)
    contents = {"__init__.py": b"", "inference/args.py": b"a = 1\n", "inference/args_test.py": b"t = 1\n"}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    hashes = {f"cosmos_framework/{name}": hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    monkeypatch.setattr(revision, "pinned_files", lambda: hashes)
    return folder


def direct_url(commit: str) -> str:
    return json.dumps({"url": "https://x", "vcs_info": {"vcs": "git", "commit_id": commit}})


def test_the_list_of_the_pin_is_whole() -> None:
    files = pinned_files()
    assert len(files) == 740
    assert "cosmos_framework/inference/ray/serve.py" in files
    assert all(len(digest) == 64 and name.startswith("cosmos_framework/") for name, digest in files.items())


def test_equal_files_are_proof_and_git_may_be_silent(package: Path) -> None:
    proof = prove(package, None)
    assert (proof.revision, proof.git, proof.files) == (FRAMEWORK_REVISION, "", 3)
    assert prove(package, direct_url(FRAMEWORK_REVISION)).git == "direct_url"
    assert prove(package, '{"url": "file:///x", "dir_info": {}}').git == ""
    assert prove(package, "no json").git == ""


def test_bytecode_and_left_out_tests_are_no_difference(package: Path) -> None:
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "x.pyc").write_bytes(b"x")
    (package / "inference" / "args_test.py").unlink()
    assert prove(package, None).files == 2


def refused(package: Path, record: str | None = None) -> StartRefused:
    with pytest.raises(StartRefused) as caught:
        prove(package, record)
    assert caught.value.stable_code == "framework_revision"
    assert FRAMEWORK_REVISION in caught.value.remedy
    return caught.value


def test_a_changed_byte_a_missing_file_and_a_foreign_file_are_each_named(package: Path) -> None:
    (package / "inference" / "args.py").write_bytes(b"a = 2\n")
    (package / "__init__.py").unlink()
    (package / "inference" / "extra.py").write_bytes(b"")
    error = refused(package)
    assert {(found.field, found.message) for found in error.errors} == {
        ("cosmos_framework/inference/args.py", "differs"),
        ("cosmos_framework/__init__.py", "is missing"),
        ("cosmos_framework/inference/extra.py", "is not of the pinned revision"),
    }
    assert "cosmos_framework/inference/args.py differs" in error.detail


def test_a_left_out_test_that_is_there_counts(package: Path) -> None:
    (package / "inference" / "args_test.py").write_bytes(b"changed\n")
    assert refused(package).errors[0].field == "cosmos_framework/inference/args_test.py"


def test_another_commit_is_refused_whatever_the_files(package: Path) -> None:
    assert OTHER in refused(package, direct_url(OTHER)).detail


def test_a_checkouts_head_is_heard(package: Path) -> None:
    git = package.parent / ".git"
    git.mkdir()
    (git / "HEAD").write_text(FRAMEWORK_REVISION + "\n")
    assert prove(package, None).git == "checkout"
    (git / "HEAD").write_text(OTHER + "\n")
    assert OTHER in refused(package).detail


def test_no_package_is_its_own_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revision, "package_folder", lambda: None)
    with pytest.raises(StartRefused) as caught:
        prove()
    assert caught.value.stable_code == "framework_missing"
    with pytest.raises(StartRefused):
        prove(tmp_path / "nowhere")
