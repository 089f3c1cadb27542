"""All runs of one root: found, created, locked, set aside and pruned (`journal.py` has the layout).

Blocking; call from a thread.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from cosmos3_serve.client.journal import Journal, Run, faults_of_disk, key_of, load, write
from cosmos3_serve.errors import Conflict, NotFound, ServiceFailure, UsageError
from cosmos3_serve.storage import files

PRUNE_AFTER_S = 30 * 24 * 3600.0


def default_root(environ: Mapping[str, str] | None = None) -> Path:
    """`$XDG_STATE_HOME/cosmos3/batches`, else below ~/.local/state."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_STATE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".local" / "state") / "cosmos3" / "batches"


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
        return load(self._runs / key_of(output_path))

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
                journal = load(folder)
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
        write(fresh / "request.json", request)
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
        found = [load(folder) for folder in sorted(self._runs.glob("[!.]*"))]
        return sorted((j for j in found if j is not None), key=lambda j: j.run.created_at)

    def prune(self, *, older_than_s: float = PRUNE_AFTER_S) -> list[str]:
        """Remove records of failed and half-made runs that nobody touched for so long; one line for each, to be shown.
        A run that can be continued stays, whatever the clock says: its journal may be all that leads to its results."""
        told, since = [], f"untouched for {older_than_s / 86400:.0f} days"
        limit = time.time() - older_than_s
        for folder in [*self._runs.glob("*"), *self._aside.glob("*")]:
            with suppress(Conflict, ServiceFailure):
                if _touched(folder) < limit:
                    with self.lock(folder.name):
                        told.append(f"{_pruned(folder, aside=folder.parent == self._aside)}, {since}")
        return told


def _pruned(folder: Path, *, aside: bool) -> str:
    journal = None
    with suppress(ServiceFailure):
        journal = load(folder)
    what = f"request {journal.run.request_id} ({journal.run.state})" if journal else "incomplete record"
    if journal is not None and not aside and journal.run.state != "failed":
        return f"kept the unfinished run {folder.name}, which --resume continues: {what}"
    shutil.rmtree(folder, ignore_errors=True)
    return f"removed the journal {folder.name}: {what}"


def _touched(folder: Path) -> float:
    with suppress(FileNotFoundError):
        return (folder / "run.json").stat().st_mtime
    with suppress(FileNotFoundError):
        return folder.stat().st_mtime
    return time.time()
