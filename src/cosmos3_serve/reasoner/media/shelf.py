"""Shelf: where uploads are kept, as the files API and the gate see it: on this disk, or shared by gateways."""

from __future__ import annotations

import asyncio
from typing import Protocol

from cosmos3_serve.reasoner.media.blobs import Blob
from cosmos3_serve.reasoner.media.info import MediaInfo
from cosmos3_serve.reasoner.media.uploads import FileRecord, Uploads


class Shelf(Protocol):
    """Uploads of tenants that never see each other's. No call blocks the event loop.

    Every method may raise NotReady (`media_store_full`, and `media_store_failed` where the store is away) or
    StorageFailure (`media_store_failed`, `media_content_corrupt`).
    """

    async def open(self) -> None:
        """Take in what is there, before anything else is called."""

    async def sweep(self) -> None:
        """Drop what is too old; call every minute or so."""

    async def create(self, tenant: str, blob: Blob, *, filename: str, purpose: str, media: MediaInfo) -> FileRecord:
        """Keep a content for a tenant; on return it is kept. Raises LimitExceeded (`file_storage_full`)."""

    async def get(self, tenant: str, file_id: str) -> FileRecord:
        """Raises NotFound (`file_not_found`): no such upload of this tenant."""

    async def pin(self, tenant: str, file_id: str) -> tuple[FileRecord, Blob]:
        """The upload and its content, on this disk and in use. Raises as `get`."""

    async def list(self, tenant: str, *, limit: int = 100, after: str = "") -> list[FileRecord]:
        """Newest first; `after`: the id of the last one of the page before."""

    async def delete(self, tenant: str, file_id: str) -> None:
        """Raises as `get`. A request that uses the content goes on."""


class LocalShelf:
    """`Uploads` off the event loop."""

    def __init__(self, uploads: Uploads) -> None:
        self._uploads = uploads

    async def open(self) -> None:
        await asyncio.to_thread(self._uploads.open)

    async def sweep(self) -> None:
        await asyncio.to_thread(self._uploads.sweep)

    async def create(self, tenant: str, blob: Blob, *, filename: str, purpose: str, media: MediaInfo) -> FileRecord:
        return await asyncio.to_thread(
            self._uploads.create, tenant, blob, filename=filename, purpose=purpose, media=media
        )

    async def get(self, tenant: str, file_id: str) -> FileRecord:
        return await asyncio.to_thread(self._uploads.get, tenant, file_id)

    async def pin(self, tenant: str, file_id: str) -> tuple[FileRecord, Blob]:
        return await asyncio.to_thread(self._uploads.pin, tenant, file_id)

    async def list(self, tenant: str, *, limit: int = 100, after: str = "") -> list[FileRecord]:
        return await asyncio.to_thread(self._uploads.list, tenant, limit=limit, after=after)

    async def delete(self, tenant: str, file_id: str) -> None:
        await asyncio.to_thread(self._uploads.delete, tenant, file_id)
