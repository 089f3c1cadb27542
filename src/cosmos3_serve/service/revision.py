"""Which revision of our own source runs: 40 hex digits, or the start is refused."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from cosmos3_serve.errors import StartRefused

SOURCE_SHA_ENV = "NPA_IMAGE_SOURCE_SHA"
STAMP = "SOURCE_REVISION"  # beside the package's __init__; whoever builds an image or wheel writes it

_SHA = re.compile(r"[0-9a-f]{40}")
_PACKAGE = Path(__file__).resolve().parents[1]


def source_revision(environ: Mapping[str, str] | None = None, package: Path = _PACKAGE) -> str:
    """The environment's value, else the HEAD of the checkout that holds the package, else the stamp of the build.

    Raises:
        StartRefused: none of the three says it, or the environment's value is not 40 lower-case hex digits.
    """
    environ = os.environ if environ is None else environ
    given = environ.get(SOURCE_SHA_ENV, "").strip()
    if given:
        if not _SHA.fullmatch(given):
            raise StartRefused(
                f"{SOURCE_SHA_ENV} is not a full commit id",
                code="source_revision",
                remedy="give 40 lower-case hexadecimal digits, or leave it unset in a git checkout",
            )
        return given
    for found in (_head_of_checkout(package), _stamp(package)):
        if found and _SHA.fullmatch(found):
            return found
    raise StartRefused(
        "the revision of the server's source is not known",
        code="source_revision",
        remedy=f"set {SOURCE_SHA_ENV} to the 40 hexadecimal digits of the commit that was installed",
    )


def _stamp(package: Path) -> str | None:
    try:
        return (package / STAMP).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None


def _head_of_checkout(package: Path) -> str | None:
    """HEAD read from the files of git: the git command may be absent, or refuse a checkout of another owner."""
    if package.parent.name != "src":
        return None  # installed: a repository further up is somebody else's
    return head_of(package.parents[1] / ".git")


def head_of(git: Path) -> str | None:
    """The commit that a repository's `.git` (folder, or file of a worktree) is at; None where it does not say."""
    try:
        if git.is_file():  # a worktree: "gitdir: <path>"
            git = (git.parent / git.read_text().partition(":")[2].strip()).resolve()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref:"):
            return head
        ref = head.partition(":")[2].strip()
        common = git / "commondir"
        shared = (git / common.read_text().strip()).resolve() if common.is_file() else git
        for folder in (git, shared):
            if (folder / ref).is_file():
                return (folder / ref).read_text().strip()
        for line in (shared / "packed-refs").read_text().splitlines():
            sha, _, name = line.partition(" ")
            if name == ref:
                return sha
    except (OSError, UnicodeDecodeError):
        return None
    return None
