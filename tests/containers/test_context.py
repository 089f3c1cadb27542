"""What a build sees of the project: named files only, and of those none that may not be in an image."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.dockerfile import ROOT, context, matcher
from support.image_archive import scan

ALLOWED = ("src/", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "constraints.txt")


def test_only_what_is_named_enters() -> None:
    found = context(ROOT)
    assert [name for name in found if not name.startswith(ALLOWED)] == []
    assert "src/cosmos3_serve/cli/main.py" in found
    assert "pyproject.toml" in found


def test_nothing_in_it_is_a_weight_or_a_credential() -> None:
    for name in context(ROOT):
        path = ROOT / name
        assert scan.reason(scan.Entry("build/" + name, path.stat().st_size)) is None, name
        assert path.stat().st_size < scan.MIB, name


def test_git_is_left_out_as_an_ignored_tree_of_everything() -> None:
    first = next(line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#"))
    assert first == "*"


@pytest.mark.parametrize(
    "name",
    [
        ".git/config",
        ".venv/bin/python",
        ".env",
        "tokens.txt",
        "dist/image.tar",
        "model.safetensors",
        "src/cosmos3_serve/model.safetensors",
        "src/cosmos3_serve/weights/tiny.bin",
        "src/.env",
        "src/cosmos3_serve/.env.local",
        "src/my-token.txt",
        "src/tls.key",
        "src/.git/HEAD",
        "src/cosmos3_serve/__pycache__/a.pyc",
        "src/cosmos3_serve/SOURCE_REVISION",
        "tests/support/tokens.py",
    ],
)
def test_what_lies_about_stays_out(name: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src/cosmos3_serve/service", tmp_path / "src/cosmos3_serve/service")
    planted = tmp_path / name
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_text("planted")
    found = context(tmp_path)
    assert name not in found
    assert "src/cosmos3_serve/service/tokens.py" in found


def test_the_matcher_reads_as_docker_does() -> None:
    assert matcher("*").fullmatch("a/b")
    assert matcher("src").fullmatch("src/a/b.py")
    assert not matcher("src").fullmatch("srcs")
    assert matcher("**/*.py[cod]").fullmatch("a/b.pyc")
    assert matcher("**/.git").fullmatch(".git/config")
    assert not matcher("**/*.bin").fullmatch("a/binary")


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        (["*", "!src", "**/made"], ["src/a.py", "src/deep/b.py"]),
        (["*", "!src/deep/made/c.py"], ["src/deep/made/c.py"]),
        (["*", "!s?c/*/b.py"], ["src/deep/b.py"]),
        (["*", "!**/c.py"], ["other/c.py", "src/deep/made/c.py"]),
        (["!src", "*"], []),
        (["src", "!src/deep", "src/deep/made"], ["other/c.py", "src/deep/b.py"]),
        ([], ["other/c.py", "src/a.py", "src/deep/b.py", "src/deep/made/c.py"]),
    ],
)
def test_a_left_out_folder_is_entered_where_a_later_line_brings_back_something_in_it(
    tmp_path: Path, rules: list[str], kept: list[str]
) -> None:
    for name in ("other/c.py", "src/a.py", "src/deep/b.py", "src/deep/made/c.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert context(tmp_path, rules) == kept


def test_what_no_line_brings_back_is_not_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (".venv/lib/a.py", "src/a.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    seen: list[str] = []
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: seen.append(Path(path).name) or real(path))  # type: ignore[func-returns-value]
    assert context(tmp_path) == ["src/a.py"]
    assert "src" in seen and ".venv" not in seen
