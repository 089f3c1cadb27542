"""The client's local memory of one run, so that a crash, Ctrl-C or a timeout can always be continued.

    <root>/runs/<key>/        one run per output path (`key` is derived from it)
        run.json              who, where, which state; replaced atomically
        request.json          the exact body of the POST, and later the published request.json
        response.json         the exact bytes received, once there are any
        proofs.jsonl          artifacts whose bytes were verified and decoded, with what decoding showed
        spool/                artifacts on their way
    <root>/set-aside/         runs that failed and were followed by a new one; nothing of them is lost until pruned
    <root>/locks/             one lock per key, held while a client works on it

Everything is on disk before the POST. Blocking; call from a thread.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from cosmos3_serve.errors import Conflict, ServiceFailure, StorageFailure
from cosmos3_serve.storage import files
from cosmos3_serve.storage.uri import parse_s3

RunState = Literal["prepared", "submitted", "ended", "failed"]


class Run(BaseModel):
    """What run.json holds.

    Attributes:
        state: `prepared` before the POST was answered, `submitted` once accepted, `ended` once response.json is kept,
            `failed` when the outcome was examined and not published (`failure` says why).
        ledger: whether the service keeps batches by id, so that this run can be continued without its response.
    """

    model_config = ConfigDict(extra="ignore")

    version: Literal[1] = 1
    state: RunState = "prepared"
    run_id: str
    request_id: str
    endpoint: str
    input_path: str
    output_path: str
    expected_revision: str
    ledger: bool
    allow_partial: bool = False
    created_at: float
    submitted_at: float | None = None
    ended_at: float | None = None
    failure: dict[str, Any] | None = None


def key_of(output_path: str) -> str:
    """One key per place: spellings of the same S3 prefix or directory share it."""
    if output_path.startswith("s3://"):
        uri = parse_s3(output_path)
        place = f"s3://{uri.bucket}/{uri.key}"
    else:
        place = os.path.normpath(output_path)
    return hashlib.sha256(place.encode("utf-8", "surrogatepass")).hexdigest()[:20]


@contextmanager
def faults_of_disk() -> Iterator[None]:
    """
    Raises:
        StorageFailure: code `journal_unusable`: a full or failing disk is no fault of the input.
    """
    try:
        yield
    except OSError as error:
        raise StorageFailure(
            f"cannot write the journal: {files.reason(error)}",
            remedy="make room, or name another folder with --journal-dir",
            code="journal_unusable",
        ) from None


class Journal:
    """One run on disk."""

    def __init__(self, directory: Path, run: Run) -> None:
        self.directory, self.run = directory, run

    @property
    def spool(self) -> Path:
        return self.directory / "spool"

    @property
    def request(self) -> bytes:
        return (self.directory / "request.json").read_bytes()

    @property
    def response(self) -> bytes | None:
        path = self.directory / "response.json"
        return path.read_bytes() if path.exists() else None

    @property
    def resumable(self) -> bool:
        """Whether what is missing can still be asked for."""
        return self.run.ledger or (self.directory / "response.json").exists()

    def save(self, **changes: Any) -> None:
        self.run = self.run.model_copy(update=changes)
        write(self.directory / "run.json", self.run.model_dump_json(indent=2).encode())

    def keep_response(self, data: bytes) -> None:
        write(self.directory / "response.json", data)
        self.save(state="ended", ended_at=time.time(), failure=None)

    @faults_of_disk()
    def drop_response(self) -> None:
        """Forget the outcome before the service is asked to run what may be run again."""
        self.save(state="submitted", ended_at=None, failure=None)
        (self.directory / "response.json").unlink(missing_ok=True)

    @faults_of_disk()
    def adopt_response(self, data: bytes) -> None:
        """Carry on with the response that another client of this batch is publishing; proofs of other bytes go."""
        (self.directory / "proofs.jsonl").unlink(missing_ok=True)
        shutil.rmtree(self.spool, ignore_errors=True)
        self.keep_response(data)

    def proofs(self) -> dict[str, dict[str, Any]]:
        """Artifact path to its proof, of files that need no second decode; a torn last line proves nothing."""
        found: dict[str, dict[str, Any]] = {}
        with suppress(FileNotFoundError):
            for line in (self.directory / "proofs.jsonl").read_bytes().splitlines():
                with suppress(ValueError, KeyError, TypeError):
                    proof = json.loads(line)
                    found[proof["path"]] = proof["media"]
        return found

    @faults_of_disk()
    def add_proof(self, path: str, media: dict[str, Any]) -> None:
        line = json.dumps({"path": path, "media": media})
        with (self.directory / "proofs.jsonl").open("a", encoding="utf-8") as out:
            out.write(f"\n{line}\n")  # the first newline ends a line that a kill may have torn

    def clear_spool(self) -> None:
        shutil.rmtree(self.spool, ignore_errors=True)

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    @faults_of_disk()
    def move(self, output_path: str) -> None:
        """Continue the run at another place; the caller holds the locks of both.

        Raises:
            Conflict: code `unfinished_run`: another run is kept for that place.
        """
        target = self.directory.with_name(key_of(output_path))
        if target != self.directory:
            if target.exists():
                raise Conflict(
                    "another run for that output path is kept in the journal",
                    remedy="continue that one first, or choose another --output-path",
                    code="unfinished_run",
                )
            self.directory.rename(target)
            files.sync_directory(target.parent)
            self.directory = target
        self.save(output_path=output_path)


def load(directory: Path) -> Journal | None:
    try:
        text = (directory / "run.json").read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return Journal(directory, Run.model_validate_json(text))
    except ValidationError:
        raise ServiceFailure(
            f"the journal {directory.name} is damaged",
            remedy="look at its files, then remove the folder; the batch itself is safe at the service",
            code="journal_damaged",
        ) from None


def write(path: Path, data: bytes) -> None:
    part = files.part_of(path)
    with faults_of_disk():
        try:
            handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                files.write_all(handle, data)
                os.fsync(handle)
            finally:
                os.close(handle)
            files.publish(part, path)
        except OSError:
            files.discard(part)
            raise
