"""Revision: proof that the installed package is the pinned source, before anything of it is imported.

Two witnesses, both heard. Git: the commit that pip recorded (`direct_url.json`), or the HEAD of the checkout that the
package lies in. Content: SHA-256 of every file of the package against the list made from the pinned tree
(`files.sha256`, in `sha256sum -c` format). A commit says what was meant, the hashes what is there; either can refuse.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from cosmos3_serve.contract.wire import FRAMEWORK_REVISION
from cosmos3_serve.errors import FieldError, StartRefused
from cosmos3_serve.service.revision import head_of

PACKAGE = "cosmos_framework"
DISTRIBUTION = "cosmos-framework"
LEFT_OUT = "_test.py"  # upstream's wheel leaves its unit tests out; where they are there, they count
SHOWN = 5
INSTALL = (
    f'pip install --no-deps "cosmos-framework @ git+https://github.com/NVIDIA/cosmos-framework@{FRAMEWORK_REVISION}"'
)


@dataclass(frozen=True, slots=True)
class Proof:
    """`git` is `direct_url`, `checkout` or empty (nothing said so); `files` were hashed and are those of the pin."""

    revision: str
    git: str
    files: int


def prove(package: Path | None = None, direct_url: str | None = None) -> Proof:
    """Prove the package of this interpreter, or the one at `package` with pip's `direct_url.json` as text.

    Raises:
        StartRefused: `framework_missing` without the package, `framework_revision` where it is another one.
    """
    if package is None:
        package, direct_url = package_folder(), _direct_url()
    if package is None or not package.is_dir():
        raise StartRefused(
            f"the package {PACKAGE} is not installed in this interpreter", code="framework_missing", remedy=INSTALL
        )
    said, commit = _git(package, direct_url)
    if commit and commit != FRAMEWORK_REVISION:
        raise _mismatch(f"the {said.replace('_', ' ')} of {PACKAGE} says commit {commit[:40]}", [])
    wanted = pinned_files()
    found = present_files(package)
    missing = [name for name in wanted.keys() - found.keys() if not name.endswith(LEFT_OUT)]
    differs = sorted(
        [FieldError(name, "is missing") for name in missing]
        + [FieldError(name, "is not of the pinned revision") for name in found.keys() - wanted.keys()]
        + [FieldError(name, "differs") for name in wanted.keys() & found.keys() if wanted[name] != found[name]],
        key=lambda item: item.field,
    )
    if differs:
        text = ", ".join(f"{item.field} {item.message}" for item in differs[:SHOWN])
        rest = f", and {len(differs) - SHOWN} more" if len(differs) > SHOWN else ""
        raise _mismatch(f"{len(differs)} files of {PACKAGE} are not those of the pin: {text}{rest}", differs)
    return Proof(FRAMEWORK_REVISION, said, len(found))


def package_folder() -> Path | None:
    """Where the package lies, without importing it."""
    spec = find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


def pinned_files() -> dict[str, str]:
    """Path below the package's parent to SHA-256, of the pinned tree."""
    text = (files(__package__ or "") / "files.sha256").read_text(encoding="ascii")
    pairs = (line.split("  ", 1) for line in text.splitlines() if line)
    return {name: digest for digest, name in pairs}


def present_files(package: Path) -> dict[str, str]:
    """The same of what is installed; bytecode is Python's own and left out."""
    return {
        path.relative_to(package.parent).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in _walk(package)
    }


def _walk(package: Path) -> Iterable[Path]:
    for path in sorted(package.rglob("*")):
        if "__pycache__" not in path.parts and path.suffix not in (".pyc", ".pyo") and not path.is_dir():
            yield path


def _git(package: Path, direct_url: str | None) -> tuple[str, str]:
    """(who says so, commit); two empty texts when git has nothing to say."""
    try:
        record = json.loads(direct_url or "{}")
    except ValueError:
        record = {}
    vcs = record.get("vcs_info") if isinstance(record, dict) else None
    commit = vcs.get("commit_id") if isinstance(vcs, dict) else None
    if isinstance(commit, str) and commit:
        return "direct_url", commit
    head = head_of(package.parent / ".git")
    return ("checkout", head) if head else ("", "")


def _direct_url() -> str | None:
    try:
        return distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        return None


def _mismatch(text: str, differs: list[FieldError]) -> StartRefused:
    return StartRefused(
        f"{text}; this service binds revision {FRAMEWORK_REVISION}",
        code="framework_revision",
        remedy=f"install the pinned revision: {INSTALL}",
        errors=differs[:100],
    )
