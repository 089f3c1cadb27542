"""Where objects lie: `s3://bucket/prefix` or an absolute directory, opened as a store and a prefix in it.

open_store("s3://bucket/prefix") ─┐                        ┌─ bucket.py     S3 over HTTP, retried
                                  ├─ Location(store, prefix)┤
open_store("/some/directory")    ─┘                        └─ directory.py  files, same promises
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cosmos3_serve.errors import UsageError
from cosmos3_serve.storage.bucket import bucket_store
from cosmos3_serve.storage.directory import DirectoryStore
from cosmos3_serve.storage.store import ObjectStore
from cosmos3_serve.storage.uri import SCHEME, S3Uri, parse_s3, require_object


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a store: the store and a key prefix below it (`""` for its root). `str()` ends in one slash."""

    store: ObjectStore
    prefix: str
    text: str

    def key(self, name: str) -> str:
        """The full key of an object called `name` below this place."""
        return f"{self.prefix}/{name}" if self.prefix else name

    def __str__(self) -> str:
        return self.text


def open_store(location: str, environ: Mapping[str, str] | None = None) -> Location:
    """Open `s3://bucket[/prefix]` or an absolute local directory (created when first written to).

    Stores are shared: one per bucket, endpoint and credentials, the least recently used dropped past a bound.

    Raises:
        UsageError: neither of the two; or S3 settings are missing (the error names the variable).
        StorageAuthorizationError: a malformed S3 URI.
    """
    location = location.strip()
    if location[: len(SCHEME)].lower() == SCHEME:
        uri = parse_s3(location)
        text = str(S3Uri(uri.bucket, uri.key, directory=bool(uri.key)))
        return Location(bucket_store(uri.bucket, environ), uri.key, text)
    if location.startswith("/"):
        root = Path(os.path.normpath(location))
        return Location(DirectoryStore(root), "", f"{str(root).rstrip('/')}/")
    raise UsageError(
        "a storage location must be s3://bucket/prefix or an absolute path",
        remedy="begin it with s3:// or /",
        code="invalid_location",
    )


def open_object(location: str, environ: Mapping[str, str] | None = None) -> tuple[ObjectStore, str]:
    """The store and key of one object, `s3://bucket/key` or an absolute file path. Raises as `open_store`."""
    location = location.strip()
    if location.startswith("/"):
        path = Path(os.path.normpath(location))
        return open_store(str(path.parent), environ).store, path.name
    place = open_store(location, environ)
    return place.store, require_object(parse_s3(location)).key
