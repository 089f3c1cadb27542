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

import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from cosmos3_serve.errors import Conflict, NotFound, ServiceFailure, StorageFailure, UsageError
from cosmos3_serve.storage import files
from cosmos3_serve.storage.uri import parse_s3

PRUNE_AFTER_S = 30 * 24 * 3600.0
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


def default_root(environ: Mapping[str, str] | None = None) -> Path:
    """`$XDG_STATE_HOME/cosmos3/batches`, else below ~/.local/state."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_STATE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".local" / "state") / "cosmos3" / "batches"


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
        _write(self.directory / "run.json", self.run.model_dump_json(indent=2).encode())

    def keep_response(self, data: bytes) -> None:
        _write(self.directory / "response.json", data)
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


class Journals:
    """All runs below one root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._runs, self._aside, self._locks = root / "runs", root / "set-aside", root / "locks"

    def prepare(self) -> None:
        """Make the folders. Raises UsageError when they cannot be written."""
        try:
            for folder in (self._runs, self._aside, self._locks):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                with faults_of_disk():
                    raise
            raise UsageError(
                f"the journal folder cannot be used: {error.strerror}",
                remedy="name a writable folder with --journal-dir",
                code="journal_unusable",
            ) from None

    @contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Hold the run of one output path.

        Raises:
            Conflict: code `run_in_progress`: another client works on it.
        """
        path = self._locks / f"{key}.lock"
        while True:
            with faults_of_disk():
                handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(handle)
                raise Conflict(
                    "another client works on this output path",
                    remedy="wait for it, or stop it and run again with --resume",
                    code="run_in_progress",
                ) from None
            # The last holder removes the file, so a lock on a removed file protects nothing.
            with suppress(FileNotFoundError):
                if path.stat().st_ino == os.fstat(handle).st_ino:
                    break
            os.close(handle)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(handle)

    def find(self, output_path: str) -> Journal | None:
        return _load(self._runs / key_of(output_path))

    def find_named(self, name: str) -> Journal:
        """By run id, request id or key.

        Raises:
            NotFound: code `no_such_run`.
        """
        for journal in self.all():
            if name in (journal.run.run_id, journal.run.request_id, journal.directory.name):
                return journal
        raise NotFound(
            f"no unfinished run is called {name!r} here",
            remedy="give --output-path, or the --journal-dir that the run was started with",
            code="no_such_run",
        )

    def recorded(self, name: str) -> Journal | None:
        """The newest record of a run, by request id or run id, also of one that was set aside; changes nothing."""
        found = []
        for folder in [*self._runs.glob("[!.]*"), *self._aside.glob("[!.]*")]:
            with suppress(ServiceFailure):
                journal = _load(folder)
                if journal is not None and name in (journal.run.request_id, journal.run.run_id):
                    found.append(journal)
        return max(found, key=lambda journal: journal.run.created_at, default=None)

    @faults_of_disk()
    def create(self, run: Run, request: bytes) -> Journal:
        """Put a new run on disk, whole or not at all."""
        final = self._runs / key_of(run.output_path)
        fresh = self._runs / f".new-{uuid.uuid4().hex}"
        fresh.mkdir(mode=0o700)
        journal = Journal(fresh, run)
        _write(fresh / "request.json", request)
        journal.save()
        fresh.rename(final)
        files.sync_directory(self._runs)
        journal.directory = final
        return journal

    @faults_of_disk()
    def set_aside(self, journal: Journal) -> Path:
        """Make room for a new run and keep the record of this one, without its spool."""
        target = self._aside / f"{journal.directory.name}-{journal.run.request_id}-{uuid.uuid4().hex[:8]}"
        shutil.rmtree(journal.spool, ignore_errors=True)
        journal.directory.rename(target)
        return target

    def all(self) -> list[Journal]:
        """Runs that may be continued, oldest first."""
        found = [_load(folder) for folder in sorted(self._runs.glob("[!.]*"))]
        return sorted((j for j in found if j is not None), key=lambda j: j.run.created_at)

    def prune(self, *, older_than_s: float = PRUNE_AFTER_S) -> list[str]:
        """Remove records of failed and half-made runs that nobody touched for so long; one line for each, to be shown.

        A run that can be continued stays, whatever the clock says: its journal may be all that leads to its results.
        """
        told = []
        limit = time.time() - older_than_s
        for folder in [*self._runs.glob("*"), *self._aside.glob("*")]:
            if _touched(folder) >= limit:
                continue
            with suppress(Conflict), self.lock(folder.name):
                journal, since = None, f"untouched for {older_than_s / 86400:.0f} days"
                with suppress(ServiceFailure):
                    journal = _load(folder)
                what = f"request {journal.run.request_id} ({journal.run.state})" if journal else "incomplete record"
                if journal is not None and folder.parent == self._runs and journal.run.state != "failed":
                    told.append(f"kept the unfinished run {folder.name}: {what}, {since}; --resume continues it")
                    continue
                shutil.rmtree(folder, ignore_errors=True)
                told.append(f"removed the journal {folder.name}: {what}, {since}")
        return told


def _touched(folder: Path) -> float:
    with suppress(FileNotFoundError):
        return (folder / "run.json").stat().st_mtime
    with suppress(FileNotFoundError):
        return folder.stat().st_mtime
    return time.time()


def _load(directory: Path) -> Journal | None:
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


def _write(path: Path, data: bytes) -> None:
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
