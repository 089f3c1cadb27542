"""The source's revision: environment, checkout, stamp, or no start."""

from pathlib import Path

import pytest

from cosmos3_serve.errors import StartRefused
from cosmos3_serve.service.revision import STAMP, source_revision

A, B, C = "a" * 40, "b" * 40, "c" * 40


@pytest.fixture
def package(tmp_path: Path) -> Path:
    path = tmp_path / "src" / "pkg"
    path.mkdir(parents=True)
    return path


def test_the_environment_wins_and_must_be_complete(package: Path) -> None:
    (package / STAMP).write_text(B)
    assert source_revision({"NPA_IMAGE_SOURCE_SHA": A}, package) == A
    for bad in ("abc", A.upper(), A + "0", "unknown"):
        with pytest.raises(StartRefused):
            source_revision({"NPA_IMAGE_SOURCE_SHA": bad}, package)


def test_the_head_of_the_checkout_in_each_of_its_forms(package: Path, tmp_path: Path) -> None:
    git = tmp_path / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text(f"{A}\n")
    assert source_revision({}, package) == A
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "packed-refs").write_text(f"# pack-refs\n{B} refs/heads/main\n")
    assert source_revision({}, package) == B
    (git / "refs" / "heads" / "main").write_text(f"{C}\n")
    assert source_revision({}, package) == C


def test_a_worktree(package: Path, tmp_path: Path) -> None:
    main = tmp_path / "main.git"
    (main / "worktrees" / "w").mkdir(parents=True)
    (main / "worktrees" / "w" / "HEAD").write_text("ref: refs/heads/x\n")
    (main / "worktrees" / "w" / "commondir").write_text("../..\n")
    (main / "packed-refs").write_text(f"{B} refs/heads/x\n")
    (tmp_path / ".git").write_text(f"gitdir: {main}/worktrees/w\n")
    assert source_revision({}, package) == B


def test_installed_without_a_stamp_is_refused_and_a_foreign_repository_does_not_count(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "pkg"
    package.mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text(A)
    with pytest.raises(StartRefused):
        source_revision({}, package)
    (package / STAMP).write_text(B + "\n")
    assert source_revision({}, package) == B
