"""BatchFiles: what one batch has on disk, and the lock on the output root. Everything here blocks: call from a thread.

    <output_root>/.cosmos3/lock                    held by the one service process that writes here
    <output_root>/.cosmos3/ledger/<request_id>/    journal.jsonl, request.json, response.json, summary.json
    <output_root>/.cosmos3/staging/<request_id>/   inputs, while the batch runs (see `staging`)
    <output_root>/<request_id>/<sample>/           artifacts

`summary.json` is written once the batch ended, so that a start reads one small file per old batch instead of its
journal; in an expired batch it is all that is left.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cosmos3_serve.contract.views import BatchState
from cosmos3_serve.errors import Conflict, Cosmos3Error, NotReady, StartRefused
from cosmos3_serve.generator.batch import Summary
from cosmos3_serve.generator.journal import Journal, JournalRead, read_journal, sync_directory, write_file

PRIVATE = ".cosmos3"
NEW = ".new-"
DISK_FULL_RETRY_S = 60.0


def disk_error(error: OSError) -> Cosmos3Error:
    """What a failed write of the ledger means to the caller: never our traceback, always retryable later."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return NotReady(
            "the output root is full",
            code="disk_full",
            remedy="try again later; the operator must free space or lower --retention-bytes",
            retry_after_s=DISK_FULL_RETRY_S,
        )
    return NotReady(
        f"the ledger could not be written ({errno.errorcode.get(error.errno or 0, 'unknown error')})",
        code="ledger_unavailable",
        remedy="try again later; the operator must look at the filesystem of the output root",
        retry_after_s=DISK_FULL_RETRY_S,
    )


class RootLock:
    """Exclusive use of an output root, for as long as the process lives or until `release`."""

    def __init__(self, output_root: Path) -> None:
        """Raises StartRefused when another process holds the root, or it can't be written."""
        self._descriptor = -1
        try:
            private = output_root / PRIVATE
            private.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._descriptor = os.open(private / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise StartRefused(
                "another service process uses this output root",
                code="output_root_in_use",
                remedy="stop it, or give this one its own --output-path",
            ) from None
        except OSError as error:
            self.release()
            raise StartRefused(
                f"the output root can't be used: {os.strerror(error.errno or 0)}",
                code="output_root_unusable",
                remedy="make --output-path a writable directory (a shared filesystem when there are several nodes)",
            ) from None

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class BatchFiles:
    """The files of one batch."""

    def __init__(self, output_root: Path, request_id: str) -> None:
        self.request_id = request_id
        self.outputs = output_root / request_id
        self.staging = output_root / PRIVATE / "staging" / request_id
        self.home = output_root / PRIVATE / "ledger" / request_id

    @property
    def journal_path(self) -> Path:
        return self.home / "journal.jsonl"

    def create(self, accepted: Mapping[str, Any], request: bytes) -> Journal:
        """Make the batch exist, all of it or nothing; durable on return.

        Raises:
            Conflict: something that the ledger doesn't know is there under this id already.
            OSError: the disk is full or failing; nothing is left behind.
        """
        if self.home.exists() or os.path.lexists(self.outputs):
            raise Conflict(
                f"request_id {self.request_id!r} is taken", code="request_id_taken", remedy="use another request_id"
            )
        fresh = self.home.with_name(NEW + self.request_id)
        try:
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir(mode=0o700)
            write_file(fresh / "request.json", request)
            journal = Journal(fresh / self.journal_path.name)
            journal.append([accepted], sync=True)
            sync_directory(fresh)
            fresh.rename(self.home)
            sync_directory(self.home.parent)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        journal.path = self.journal_path
        return journal

    def read(self) -> JournalRead:
        """The journal; a missing or unreadable file counts as damage, because an accepted batch always has one."""
        try:
            found = read_journal(self.journal_path)
        except OSError as error:
            return JournalRead(damage=f"the journal can't be read ({errno.errorcode.get(error.errno or 0, '?')})")
        if not found.records and found.damage is None:
            return JournalRead(damage="the journal holds no record")
        return found

    def request(self) -> dict[str, Any]:
        request: dict[str, Any] = json.loads((self.home / "request.json").read_bytes())
        return request

    def write_response(self, data: bytes) -> None:
        write_file(self.home / "response.json", data)

    def response(self) -> bytes:
        return (self.home / "response.json").read_bytes()

    def write_summary(self, summary: Summary) -> None:
        write_file(self.home / "summary.json", json.dumps(asdict(summary)).encode())

    def summary(self) -> Summary | None:
        """The summary, or None where there is no good one (then the journal must be read)."""
        try:
            fields = json.loads((self.home / "summary.json").read_bytes())
            summary = Summary(**{**fields, "state": BatchState(fields["state"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return summary if summary.request_id == self.request_id else None

    def forget_summary(self) -> None:
        (self.home / "summary.json").unlink(missing_ok=True)

    def usage(self) -> int:
        """Bytes that the batch's files take."""
        total = 0
        for top in (self.home, self.outputs):
            for folder, _, names in os.walk(top):
                for name in names:
                    try:
                        total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118
                    except OSError:
                        continue
        return total

    def remove_sample(self, name: str) -> None:
        """Clear what an earlier run of a sample left, so that a rerun starts from nothing."""
        remove(self.outputs / name)

    def remove_content(self) -> None:
        """Remove everything but the summary."""
        remove(self.outputs)
        remove(self.staging)
        for name in ("request.json", "response.json", self.journal_path.name):
            (self.home / name).unlink(missing_ok=True)

    def remove_all(self) -> None:
        self.remove_content()
        remove(self.home)


def remove(path: Path) -> None:
    """Remove a tree; never follows a link; what is not there is fine."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
