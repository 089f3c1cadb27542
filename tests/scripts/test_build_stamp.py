"""Wheels and sdists say which commit they were built from, or nothing; never a commit that they are not.

Real builds by the real backend, offline, of a copy of this project in a git repository of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from cosmos3_serve.errors import StartRefused
from cosmos3_serve.service.revision import STAMP, source_revision

ROOT = Path(__file__).parents[2]
GIVEN = "a1" * 20
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("NPA_", "GIT_"))}
GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files of a build, without git. Of the package a few modules: what a stamp says is not of how many."""
    tree = tmp_path / "tree"
    modules = [f"src/cosmos3_serve/{name}" for name in ("__init__.py", "errors.py", "service/revision.py")]
    for name in (*modules, "pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".gitignore"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    return tree


def commit(tree: Path) -> str:
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*GIT, *arguments], cwd=tree, env=CLEAN, check=True)
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=tree, capture_output=True, text=True, check=True
    ).stdout.strip()


def build(tree: Path, kind: str, **environ: str) -> Path:
    """The one file of a fresh folder."""
    out = tree.parent / f"{kind}-{len(list(tree.parent.iterdir()))}"
    out.mkdir()
    script = f"import sys; from hatchling.build import build_{kind} as b; b(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", script, str(out)], cwd=tree, env=CLEAN | environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (made,) = out.iterdir()
    return made


def unpacked(archive: Path) -> Path:
    """The package as an installation would hold it (of a wheel), or the project's root (of an sdist)."""
    place = archive.with_suffix(".d")
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            assert len(wheel.namelist()) == len(set(wheel.namelist()))
            wheel.extractall(place)
        return place / "cosmos3_serve"
    with tarfile.open(archive) as sdist:
        sdist.extractall(place, filter="data")
    (root,) = place.iterdir()
    return root


def test_a_clean_checkout_stamps_its_head_and_the_service_reads_it(tree: Path) -> None:
    head = commit(tree)
    package = unpacked(build(tree, "wheel"))
    assert (package / STAMP).read_text() == head + "\n"
    assert source_revision({}, package) == head
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=tree, capture_output=True, text=True, check=True)
    assert changed.stdout == "", "the build wrote into the checkout"


def test_an_sdist_hands_its_stamp_on_to_the_wheel_that_is_built_from_it(tree: Path) -> None:
    head = commit(tree)
    root = unpacked(build(tree, "sdist"))
    assert (root / "src" / "cosmos3_serve" / STAMP).read_text() == head + "\n"
    assert source_revision({}, unpacked(build(root, "wheel"))) == head


@pytest.mark.parametrize("change", ["src/cosmos3_serve/errors.py", "src/cosmos3_serve/added.py"])
def test_a_changed_tree_has_no_stamp_and_the_service_refuses(tree: Path, change: str) -> None:
    commit(tree)
    with (tree / change).open("a") as file:
        file.write("# not in any commit\n")
    package = unpacked(build(tree, "wheel"))
    assert not (package / STAMP).exists()
    with pytest.raises(StartRefused, match="revision"):
        source_revision({}, package)


def test_without_git_the_environment_names_it_or_nothing_does(tree: Path) -> None:
    assert not (unpacked(build(tree, "wheel")) / STAMP).exists()
    package = unpacked(build(tree, "wheel", NPA_IMAGE_SOURCE_SHA=GIVEN))
    assert source_revision({}, package) == GIVEN


def test_a_repository_further_up_is_not_ours(tree: Path) -> None:
    subprocess.run([*GIT, "init", "-q"], cwd=tree.parent, env=CLEAN, check=True)
    subprocess.run([*GIT, "commit", "-q", "--allow-empty", "-m", "foreign"], cwd=tree.parent, env=CLEAN, check=True)
    assert not (unpacked(build(tree, "wheel")) / STAMP).exists()


def test_half_a_commit_id_stops_the_build(tree: Path) -> None:
    with pytest.raises(AssertionError, match="40 lower-case"):
        build(tree, "wheel", NPA_IMAGE_SOURCE_SHA="abc123")


def test_an_editable_install_is_not_stamped_its_checkout_moves(tree: Path) -> None:
    commit(tree)
    made = build(tree, "editable")
    with zipfile.ZipFile(made) as wheel:
        assert not any(name.endswith(STAMP) for name in wheel.namelist())
    assert not list(tree.rglob(STAMP))
