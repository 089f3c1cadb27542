"""UploadStore: the files API's uploads, in a directory of this machine or in an object store that all gateways share.

    files/<tenant>/<id>.json                   the record; it exists, or the file does not
    contents/<tenant>/<id>.<expires_at>        its bytes

A content is written and checked before its record, and removed after it, so that a record never promises what is not
there. Each upload has its own content: contents that uploads share could only be removed by counting, and counting
without a lock loses an upload in the moment between two gateways' looks. The disk of a gateway (`MediaStore`) is the
bounded cache: what it lacks is fetched, and served only if its hash is the record's.

Nothing about a record is remembered here: a file that one gateway deletes is gone at all of them at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress

import structlog

from cosmos3_serve.errors import (
    Conflict,
    Cosmos3Error,
    IntegrityError,
    NotFound,
    NotReady,
    StorageFailure,
    UsageError,
)
from cosmos3_serve.media.refusal import Refused
from cosmos3_serve.reasoner.media.blobs import Blob
from cosmos3_serve.reasoner.media.file_record import (
    FILE_ID,
    FileRecord,
    content_gone,
    from_json,
    new_record,
    no_such_file,
    storage_full,
    tenant_key,
    to_json,
)
from cosmos3_serve.reasoner.media.flight import Flights
from cosmos3_serve.reasoner.media.info import MediaInfo
from cosmos3_serve.reasoner.media.store import MediaStore
from cosmos3_serve.reasoner.media.upload_sweep import Bounds, Sweep, content_name, fits
from cosmos3_serve.reasoner.shares import Shares
from cosmos3_serve.storage.location import Location, open_store
from cosmos3_serve.storage.store import ObjectInfo

log = structlog.get_logger(__name__)

MAX_RECORD_BYTES = 64 * 1024
FETCHES = 4  # contents on their way to this disk at once
WAITING = 256  # requests that wait to fetch one
READS = 16  # records of one page at once
RETRY_S = 5.0
TRIES = 3


def upload_place(location: str) -> Location:
    """Where `--media-store` points: `s3://bucket/prefix`, or `file:///directory` on a filesystem that gateways share.

    Raises:
        UsageError: neither of the two, or S3 is not configured.
        StorageAuthorizationError: a malformed S3 URI.
    """
    local = location.startswith("file:///")
    if not local and not location.lower().startswith("s3://"):
        raise UsageError(
            "the media store is neither s3:// nor file:///",
            code="invalid_location",
            remedy="give --media-store s3://bucket/prefix or file:///shared/directory",
        )
    return open_store(location.removeprefix("file://") if local else location)


class UploadStore:
    """Uploads of tenants that never see each other's. No call blocks the event loop.

    Args:
        place: where the objects lie; shared by all gateways of a service, and by nothing else.
        store: this machine's cache.
        bounds: of what all tenants, and one, may keep there.
        clock: Unix seconds.

    Every method may raise NotReady (`media_store_full`, and `media_store_failed` where the store is away) or
    StorageFailure (`media_store_failed`, `media_content_corrupt`).
    """

    def __init__(
        self, place: Location, store: MediaStore, bounds: Bounds, clock: Callable[[], float] = time.time
    ) -> None:
        self._place, self._store, self._bounds, self._clock = place, store, bounds, clock
        self._sweep = Sweep(place, bounds, clock)
        self._flights: Flights[str, None] = Flights()
        self._room = Shares(FETCHES, WAITING, _busy)

    @property
    def max_age_s(self) -> float:
        """Seconds until a file expires that does not ask for less."""
        return self._bounds.max_age_s

    async def open(self) -> None:
        """Prove that the store is there, writable, and keeps what it promises; count what it holds.

        Raises:
            StorageFailure, NotFound: it is not; the service does not start on it.
        """
        await self._place.store.check()
        await self._place.store.prove(self._place.prefix)
        await self._sweep.run(now=True)

    async def sweep(self) -> None:
        """Remove what has expired, if it is time; call every minute or so."""
        async with _typed("sweep"):
            await self._sweep.run()

    async def create(
        self, tenant: str, blob: Blob, *, filename: str, purpose: str, media: MediaInfo, age_s: float | None = None
    ) -> FileRecord:
        """Keep a content for a tenant; on return it is kept.

        Args:
            age_s: seconds until it expires; at most the store's bound, which is the default.

        Raises:
            LimitExceeded: code `file_storage_full`: too many files or bytes, of the tenant or of all. Uploads that
                pass the bound together may all be refused; none is accepted beyond it.
        """
        bounds, owner = self._bounds, tenant_key(tenant)
        age_s = min(age_s or bounds.max_age_s, bounds.max_age_s)
        record = new_record(blob, self._clock(), age_s, filename=filename, purpose=purpose, media=media)
        content = self._content(owner, record)
        async with _typed("keep the upload"):
            await self._check_fits(owner, blob.size)
            async with self._sweep.room(blob.size):
                try:
                    await self._place.store.put_file(content, blob.path)
                    await self._check_fits(owner, blob.size, besides=content)  # with what others wrote meanwhile
                    await self._place.store.put_bytes(self._record(owner, record.id), to_json(record), create=True)
                except BaseException:
                    # Nobody learns the id: what is there in part, or was written although the answer got lost, goes.
                    with suppress(Cosmos3Error):
                        await self._place.store.delete(self._record(owner, record.id))
                        await self._place.store.delete(content)
                    raise
        return record

    async def _check_fits(self, owner: str, size: int, besides: str = "") -> None:
        held = [info.size async for info in self._objects(f"contents/{owner}") if info.key != besides]
        if reason := fits(len(held), sum(held), size, self._bounds):
            raise storage_full(reason)

    async def get(self, tenant: str, file_id: str) -> FileRecord:
        """Raises NotFound (`file_not_found`): no such upload of this tenant."""
        if not FILE_ID.match(file_id):
            raise no_such_file()
        async with _typed("look up the file"):
            record = await self._read(self._record(tenant_key(tenant), file_id))
        if record is None or record.id != file_id or record.expires_at <= self._clock():
            raise no_such_file()
        return record

    async def pin(self, tenant: str, file_id: str) -> tuple[FileRecord, Blob]:
        """The upload and its content, on this disk and in use. Raises as `get`."""
        record = await self.get(tenant, file_id)
        key = self._content(tenant_key(tenant), record)
        for _ in range(TRIES):
            blob = await asyncio.to_thread(self._store.pin, record.sha256)
            if blob is not None:
                return record, blob
            await self._flights.join(key, lambda: self._fetch(key, record, tenant))
        raise NotReady(
            "the media store has no room to keep the file long enough", code="media_store_full", retry_after_s=RETRY_S
        )

    async def list(
        self, tenant: str, *, limit: int = 100, after: str = "", purpose: str = "", oldest_first: bool = False
    ) -> list[FileRecord]:
        """Newest first unless `oldest_first`.

        Args:
            after: the id of the last one of the page before.
            purpose: only files of this one.
        """
        owner = tenant_key(tenant)
        async with _typed("list the files"):
            found = [info async for info in self._objects(f"files/{owner}")]
            found.sort(key=lambda info: (-(info.modified or 0.0), info.key), reverse=oldest_first)
            keys = [info.key for info in found]
            last = self._record(owner, after) if FILE_ID.match(after) else ""
            keys = keys[keys.index(last) + 1 :] if last in keys else keys
            page: list[FileRecord] = []
            while keys and len(page) < limit:
                some, keys = keys[:READS], keys[READS:]
                records = await asyncio.gather(*(self._read(key) for key in some))
                alive = [r for r in records if r is not None and r.expires_at > self._clock()]
                page += [r for r in alive if r.purpose == purpose or not purpose]
        return page[:limit]

    async def delete(self, tenant: str, file_id: str) -> None:
        """Raises as `get`. A request that uses the content goes on."""
        record = await self.get(tenant, file_id)
        owner = tenant_key(tenant)
        async with _typed("delete the file"):
            await self._place.store.delete(self._record(owner, file_id))
            self._sweep.removed(record.bytes)
            with suppress(Cosmos3Error):  # the file is gone with its record; the sweep removes what is left
                await self._place.store.delete(self._content(owner, record))

    # ---- objects ----------------------------------------------------------------------------------------------------

    def _record(self, owner: str, file_id: str) -> str:
        return self._place.key(f"files/{owner}/{file_id}.json")

    def _content(self, owner: str, record: FileRecord) -> str:
        return self._place.key(f"contents/{owner}/{content_name(record)}")

    def _objects(self, name: str) -> AsyncIterator[ObjectInfo]:
        return self._place.store.list(self._place.key(name))

    async def _read(self, key: str) -> FileRecord | None:
        """None: there is none, or none that can be read."""
        try:
            async with aclosing(self._place.store.get_stream(key, max_bytes=MAX_RECORD_BYTES)) as chunks:
                return from_json(b"".join([chunk async for chunk in chunks]))
        except NotFound as error:
            if error.stable_code == "bucket_not_found":
                raise
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("file_record_unreadable", reason=type(error).__name__)
            return None

    async def _fetch(self, key: str, record: FileRecord, tenant: str) -> None:
        """Bring a content to this disk."""
        async with self._room.place(tenant), _typed("fetch the file"):
            try:
                async with aclosing(self._place.store.get_stream(key, max_bytes=record.bytes)) as chunks:
                    blob = await self._store.put_stream(chunks, record.bytes, record.sha256)
            except NotFound as error:
                if error.stable_code == "bucket_not_found":
                    raise
                log.warning("file_content_missing")
                raise content_gone() from None
            except (ValueError, Refused, IntegrityError) as error:  # another hash, too many bytes, none
                log.error("file_content_corrupt", reason=type(error).__name__)
                raise StorageFailure(
                    "the object store holds other bytes than were uploaded; they are not used",
                    code="media_content_corrupt",
                    remedy="delete the file and upload it again",
                ) from None
        blob.close()


@asynccontextmanager
async def _typed(action: str) -> AsyncIterator[None]:
    """An object store that is away, or says no, is our side's fault and may pass: 503, never the client's."""
    try:
        yield
    except (StorageFailure, IntegrityError, NotFound, Conflict) as error:
        if error.stable_code in ("media_content_corrupt", "file_not_found"):
            raise
        raise NotReady(
            f"cannot {action}: {error.detail}", code="media_store_failed", remedy="send it again", retry_after_s=RETRY_S
        ) from None


def _busy() -> NotReady:
    return NotReady("too many uploads wait to be fetched", code="media_busy", retry_after_s=RETRY_S)
