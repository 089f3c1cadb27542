"""The files API's shelf: uploads of one tenant, kept until deleted or too old, and never seen by another tenant.

An upload holds its content by a hard link of its own, so that the store may evict what it likes. Another gateway of the
same machine finds a new upload on disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cosmos3_serve.errors import LimitExceeded, NotFound
from cosmos3_serve.reasoner.media import blobs
from cosmos3_serve.reasoner.media.blobs import Blob
from cosmos3_serve.reasoner.media.info import MediaInfo
from cosmos3_serve.reasoner.media.store import MediaStore
from cosmos3_serve.storage import files

FILE_ID = re.compile(r"file-[0-9a-f]{32}\Z")
MAX_NAME = 256


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One upload. `created_at`, `expires_at`: Unix seconds."""

    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    sha256: str
    media: MediaInfo

    def as_object(self) -> dict[str, Any]:
        """As the OpenAI API shows a file, with `sha256` and `media` besides."""
        shown = {k: v for k, v in asdict(self).items() if k != "media"}
        return {"object": "file", "status": "processed", **shown, "media": self.media.as_dict()}


def to_json(record: FileRecord) -> bytes:
    return json.dumps({**asdict(record), "media": record.media.as_dict()}).encode()


def from_json(data: bytes) -> FileRecord:
    """Raises ValueError, KeyError or TypeError: it is no record."""
    value = json.loads(data)
    return FileRecord(**{**value, "media": MediaInfo.from_dict(value["media"])})


def new_record(
    blob: Blob, now: float, max_age_s: float, *, filename: str, purpose: str, media: MediaInfo
) -> FileRecord:
    return FileRecord(
        id=f"file-{secrets.token_hex(16)}",
        bytes=blob.size,
        created_at=int(now),
        expires_at=int(now) + int(max_age_s),
        filename=clean_name(filename),
        purpose=purpose,
        sha256=blob.sha256,
        media=media,
    )


def no_such_file() -> NotFound:
    return NotFound(
        "there is no such file", code="file_not_found", remedy="upload it with POST /v1/files; files expire"
    )


def content_gone() -> NotFound:
    return NotFound("the file's content is gone", code="file_not_found", remedy="upload it again")


def storage_full(reason: str) -> LimitExceeded:
    return LimitExceeded(reason, code="file_storage_full", remedy="delete files that you no longer need")


class Uploads:
    """
    Args:
        max_bytes: of all uploads together, besides the store's own bound.
        max_files: of one tenant.
        max_age_s: after which an upload is removed.

    Every method blocks and may raise as the store.
    """

    def __init__(
        self,
        root: Path,
        store: MediaStore,
        *,
        max_bytes: int,
        max_files: int = 1000,
        max_age_s: float = 7 * 24 * 3600.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._root, self._store = root / "uploads", store
        self._max_bytes, self._max_files, self._max_age_s, self._clock = max_bytes, max_files, max_age_s, clock
        self._lock = threading.Lock()
        self._records: dict[str, dict[str, FileRecord]] = {}

    def open(self) -> None:
        """Take in what is on disk and drop what is too old; also called now and then (`sweep`)."""
        records: dict[str, dict[str, FileRecord]] = {}
        try:
            self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
            for shelf in self._root.iterdir():
                for path in shelf.glob("file-*.json") if shelf.is_dir() else ():
                    record = _load(path)
                    if record is not None and record.expires_at > self._clock():
                        records.setdefault(shelf.name, {})[record.id] = record
                    else:
                        _remove(path)
                self._drop_orphans(shelf)
        except OSError as error:
            raise blobs.failure("read", error) from None
        with self._lock:
            self._records = records

    sweep = open

    def create(self, tenant: str, blob: Blob, *, filename: str, purpose: str, media: MediaInfo) -> FileRecord:
        """Keep a content for a tenant.

        Raises:
            LimitExceeded: code `file_storage_full`: too many files, or bytes.
        """
        record = new_record(blob, self._clock(), self._max_age_s, filename=filename, purpose=purpose, media=media)
        with self._lock:
            shelf = self._records.setdefault(shelf_of(tenant), {})
            held = sum(r.bytes for records in self._records.values() for r in records.values())
            if len(shelf) >= self._max_files or held + blob.size > self._max_bytes:
                reason = (
                    f"{self._max_files} files are kept for you"
                    if len(shelf) >= self._max_files
                    else f"uploads hold {held} of {self._max_bytes} bytes"
                )
                raise storage_full(reason)
            shelf[record.id] = record
        path = self._path(tenant, record.id)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _link(blob.path, path.with_suffix(".bin"))
            part = files.part_of(path)
            part.write_bytes(to_json(record))
            files.publish(part, path)
        except OSError as error:
            self._forget(tenant, record.id)
            raise blobs.failure("write", error) from None
        return record

    def get(self, tenant: str, file_id: str) -> FileRecord:
        """
        Raises:
            NotFound: code `file_not_found`: no such upload of this tenant.
        """
        with self._lock:
            record = self._records.get(shelf_of(tenant), {}).get(file_id)
        if record is None and FILE_ID.match(file_id):
            record = _load(self._path(tenant, file_id))  # made by another gateway of this machine
        elif record is not None and not self._path(tenant, file_id).exists():
            self._forget(tenant, file_id)  # deleted by another
            record = None
        if record is None or record.expires_at <= self._clock():
            raise no_such_file()
        with self._lock:
            self._records.setdefault(shelf_of(tenant), {})[file_id] = record
        return record

    def pin(self, tenant: str, file_id: str) -> tuple[FileRecord, Blob]:
        """The upload and its content, in use. Raises as `get`."""
        record = self.get(tenant, file_id)
        blob = self._store.pin(record.sha256)
        if blob is None:
            held = self._path(tenant, file_id).with_suffix(".bin")
            try:
                with self._store.writer(record.bytes) as writer, held.open("rb") as source:
                    while chunk := source.read(1 << 20):
                        writer.write(chunk)
                    blob = writer.commit(record.sha256)
            except (FileNotFoundError, ValueError):
                self._forget(tenant, file_id)
                raise content_gone() from None
            except OSError as error:
                raise blobs.failure("read", error) from None
        return record, blob

    def list(self, tenant: str, *, limit: int = 100, after: str = "") -> list[FileRecord]:
        """Newest first; `after`: the id of the last one of the page before."""
        shelf = self._root / shelf_of(tenant)
        with self._lock:
            known = dict(self._records.get(shelf.name, {}))
        on_disk = [path for path in shelf.glob("file-*.json") if shelf.is_dir()]
        records = [record for path in on_disk if (record := known.get(path.stem) or _load(path)) is not None]
        alive = sorted((r for r in records if r.expires_at > self._clock()), key=lambda r: (-r.created_at, r.id))
        ids = [record.id for record in alive]
        start = ids.index(after) + 1 if after in ids else 0
        return alive[start : start + limit]

    def delete(self, tenant: str, file_id: str) -> None:
        """Raises as `get`. A request that uses the content goes on."""
        self.get(tenant, file_id)
        self._forget(tenant, file_id)

    def _forget(self, tenant: str, file_id: str) -> None:
        with self._lock:
            self._records.get(shelf_of(tenant), {}).pop(file_id, None)
        _remove(self._path(tenant, file_id))

    def _drop_orphans(self, shelf: Path) -> None:
        for held in shelf.glob("file-*.bin") if shelf.is_dir() else ():
            with suppress(OSError):
                if not held.with_suffix(".json").exists() and time.time() - held.stat().st_mtime > 3600:
                    held.unlink()

    def _path(self, tenant: str, file_id: str) -> Path:
        return self._root / shelf_of(tenant) / f"{file_id}.json"


def shelf_of(tenant: str) -> str:
    return hashlib.sha256(tenant.encode()).hexdigest()[:32]  # a tenant's name may hold anything


def clean_name(filename: str) -> str:
    name = re.split(r"[/\\]", filename)[-1]
    return "".join(c for c in name if c.isprintable())[:MAX_NAME] or "upload"


def _load(path: Path) -> FileRecord | None:
    try:
        return from_json(path.read_bytes())
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)
        path.with_suffix(".bin").unlink(missing_ok=True)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        import shutil

        shutil.copyfile(source, target)
