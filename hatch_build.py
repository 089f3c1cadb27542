"""Stamp of a build: which commit the package was built from, for `service/revision.py`.

`NPA_IMAGE_SOURCE_SHA`, else the HEAD of a clean checkout, else the stamp that the unpacked sdist carries. A checkout
whose packaged files differ from HEAD gets no stamp: 40 hex digits can't say "dirty", and the bare HEAD would be untrue.
Without a stamp the service asks for `NPA_IMAGE_SOURCE_SHA` at its start. The stamp is never written into the tree: an
editable install reads the checkout's own HEAD, which moves.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE_SHA_ENV = "NPA_IMAGE_SOURCE_SHA"
STAMP = "cosmos3_serve/SOURCE_REVISION"
PACKAGED = ("src", "pyproject.toml", "hatch_build.py")

_SHA = re.compile(r"[0-9a-f]{40}")


class SourceStamp(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """
        Raises:
            ValueError: the variable is set and is not a full commit id.
        """
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if version == "editable":
            return
        revision = self._revision(Path(self.root))
        if revision is None:
            return
        self._folder = tempfile.TemporaryDirectory()
        stamp = Path(self._folder.name, "stamp")
        stamp.write_text(revision + "\n", encoding="ascii")
        build_data["force_include"][str(stamp)] = STAMP if self.target_name == "wheel" else f"src/{STAMP}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def _revision(self, root: Path) -> str | None:
        given = os.environ.get(SOURCE_SHA_ENV, "").strip()
        if given:
            if not _SHA.fullmatch(given):
                raise ValueError(f"{SOURCE_SHA_ENV} is not a full commit id: give 40 lower-case hexadecimal digits")
            return given
        if not (root / ".git").exists():  # a repository further up is somebody else's
            return self._carried(root)
        head, changes = _git(root, "rev-parse", "HEAD"), _git(root, "status", "--porcelain", "--", *PACKAGED)
        if head is None or changes is None or not _SHA.fullmatch(head):
            return self._without("git does not say which commit this is")
        if changes:
            return self._without(f"{len(changes.splitlines())} packaged files differ from the commit")
        return head

    def _carried(self, root: Path) -> str | None:
        try:
            found = (root / "src" / STAMP).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            found = ""
        return found if _SHA.fullmatch(found) else self._without("this is no git checkout")

    def _without(self, reason: str) -> None:
        self.app.display_warning(f"no source revision in this build: {reason}; {SOURCE_SHA_ENV} can name it")


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
