"""Answers of a part on this machine's disk: appended as they come, read when the part is continued.

One file a part, removed once the part is published. Its first line says which body it belongs to. Blocking.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from cosmos3_serve.client.journal import faults_of_disk
from cosmos3_serve.reasoner_client.batch.line import Line


class AnswerLog:
    """
    Args:
        sha256: of the part's body; a log of another body is begun anew.

    Every method raises:
        StorageFailure: code `journal_unusable`: the disk is full or fails.
    """

    def __init__(self, folder: Path, sha256: str) -> None:
        self._folder, self._path, self._header = folder, folder / "answers.jsonl", {"body_sha256": sha256}

    def open(self) -> dict[str, Line]:
        """Lines by custom_id; of two the later. A line that a kill has torn is no answer."""
        with faults_of_disk():
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lines = self._path.read_bytes().split(b"\n") if self._path.exists() else []
        if not lines or _parsed(lines[0]) != self._header:
            with faults_of_disk():
                self._path.write_bytes(json.dumps(self._header).encode() + b"\n")
            return {}
        found = [line for data in lines[1:] if (line := _parsed(data)) is not None]
        return {line["custom_id"]: line for line in found if isinstance(line.get("custom_id"), str)}

    def add(self, line: Line) -> None:
        with faults_of_disk(), self._path.open("ab") as out:
            out.write(b"\n" + json.dumps(line, allow_nan=False).encode() + b"\n")  # the first ends a torn line
            out.flush()
            os.fsync(out.fileno())

    def publishable(self, data: bytes) -> Path:
        """A file that holds exactly `data`, to be uploaded."""
        path = self._folder / "published.jsonl"
        with faults_of_disk():
            path.write_bytes(data)
        return path

    def remove(self) -> None:
        for path in (self._path, self._folder / "published.jsonl"):
            with suppress(OSError):
                path.unlink()
        with suppress(OSError):
            self._folder.rmdir()


def _parsed(data: bytes) -> Line | None:
    try:
        found = json.loads(data)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
