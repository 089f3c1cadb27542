"""A local directory with the promises of a bucket: atomic objects, conditional create, streaming."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from itertools import islice
from pathlib import Path

from cosmos3_serve.errors import Conflict, IntegrityError, LimitExceeded, NotFound, RangeNotSatisfiable, StorageFailure
from cosmos3_serve.storage import files
from cosmos3_serve.storage.store import CHUNK_BYTES, ObjectInfo, ObjectStore
from cosmos3_serve.storage.uri import check_key

LIST_PAGE = 500


class DirectoryStore(ObjectStore):
    """See `ObjectStore`. Directories are made as needed; hidden `.part` files of unfinished writes are not objects."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def _path(self, key: str) -> Path:
        return self.root.joinpath(*check_key(key).split("/"))
