"""FileRecord: what the files API knows about one upload, and how it is written down."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from dataclasses import asdict, dataclass, fields
from typing import Any

from cosmos3_serve.errors import LimitExceeded, NotFound
from cosmos3_serve.reasoner.media.blobs import Blob
from cosmos3_serve.reasoner.media.info import MediaInfo

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
    """Fields that this version does not know are skipped: gateways of two versions share records during an update.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is no record.
    """
    value = json.loads(data)
    media = MediaInfo.from_dict(_known(MediaInfo, value["media"]))
    return FileRecord(**{**_known(FileRecord, value), "media": media})


def _known(kind: type[Any], value: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {name: item for name, item in value.items() if name in names}


def new_record(blob: Blob, now: float, age_s: float, *, filename: str, purpose: str, media: MediaInfo) -> FileRecord:
    return FileRecord(
        id=f"file-{secrets.token_hex(16)}",
        bytes=blob.size,
        created_at=int(now),
        expires_at=int(now) + int(age_s),
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


def tenant_key(tenant: str) -> str:
    """The tenant's part of a key: a digest, because a tenant's name may hold anything."""
    return hashlib.sha256(tenant.encode()).hexdigest()[:32]


def clean_name(filename: str) -> str:
    name = re.split(r"[/\\]", filename)[-1]
    return "".join(c for c in name if c.isprintable())[:MAX_NAME] or "upload"
