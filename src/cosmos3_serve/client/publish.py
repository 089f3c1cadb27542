"""Publication: one batch owns one output location, and `provenance.json` is there only when it is true.

    .cosmos3-claims/  who may publish here (`claims.py`), before anything is sent
    request.json      once this batch begins to publish
    response.json     the exact bytes received, before the first artifact
    artifacts/…       each read back by size and SHA-256
    native/…          in a recovered publication, the engine's own records that it was derived from
    provenance.json   last, after everything that it names was compared once more: its presence means complete

Nothing is ever overwritten: every object is created only if its key is free, and what is there already must have this
batch's very bytes. Every step may be repeated by a later process of the same batch. After any conflict the stored
publication is verified, and the stored manifest is what the caller gets.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cosmos3_serve.client.claims import Claims, Contested, Found, Sealed
from cosmos3_serve.contract.records import Artifact
from cosmos3_serve.errors import (
    Conflict,
    Cosmos3Error,
    IntegrityError,
    LimitExceeded,
    NotFound,
    RangeNotSatisfiable,
    StorageFailure,
    UsageError,
)
from cosmos3_serve.publication.layout import ARTIFACTS, PROVENANCE, REQUEST, RESPONSE
from cosmos3_serve.publication.pool import each
from cosmos3_serve.publication.verify import differences, read_bytes, verified_manifest
from cosmos3_serve.storage.growing import Growing, Spoiled
from cosmos3_serve.storage.location import Location
from cosmos3_serve.storage.store import ObjectInfo

__all__ = ["Contested", "Found", "Publication", "Sealed"]

UPLOADS = 32  # files at once, so that one is read back while another is sent; the store bounds what is in memory
CONFIRMS = 16  # objects looked up at once before the seal
LISTED = 16  # more objects are listed, not looked up


@dataclass(frozen=True, slots=True)
class Early:
    """An upload that began before its file was verified. It may fail: then the whole file is uploaded as any other."""

    growing: Growing
    upload: asyncio.Task[ObjectInfo]

    async def finish(self) -> ObjectInfo | None:
        """What was stored, now that the file is verified; None where the upload failed."""
        self.growing.verify()
        try:
            return await self.upload
        except (Cosmos3Error, Spoiled):
            return None

    async def drop(self) -> None:
        """End it, unless it ended; without `finish` nothing of it stays."""
        self.upload.cancel()
        await asyncio.gather(self.upload, return_exceptions=True)


class Publication:
    """One output location on behalf of one batch.

    Every method raises:
        Conflict: code `publication_exists`: the location belongs to another batch.
        StorageFailure: storage would not, after retries.
    """

    def __init__(self, place: Location, request: bytes, request_id: str) -> None:
        self._place, self._request = place, request
        self._store = place.store
        self._claims = Claims(place, request, request_id)
        self._begun = ""
        self._uploads = asyncio.Semaphore(UPLOADS)
        # Versions whose bytes were read and compared, by key.
        self._compared: dict[str, tuple[ObjectInfo, str]] = {}
        self._listed: dict[str, ObjectInfo] = {}  # as it is before the seal

    @property
    def place(self) -> str:
        return str(self._place)

    async def look(self) -> Found:
        """Who holds the location; changes nothing."""
        return await self._claims.look()

    async def prove(self, names: Iterable[str] = ()) -> None:
        """Before anything is generated: whether what is generated could be published.

        Args:
            names: of the samples, which become folders.

        Raises:
            UsageError: code `location_not_writable`; code `case_insensitive_location`: two names would share a folder.
            StorageFailure: code `conditional_put_unsupported`, or writing is not allowed.
            IntegrityError: other bytes come back than were written.
        """
        proof = await self._store.prove(self._place.prefix)
        if not proof.case_sensitive:
            _require_distinct(names)

    async def claim(self) -> None:
        """Own the location; nothing where this batch does already.

        Raises:
            Sealed: it was published meanwhile.
        """
        await self._claims.claim()

    async def release(self) -> bool:
        """Give the claim back; False where there is none of this batch, or it already began to publish."""
        return await self._claims.release()

    async def begin(self, outcome: str, response: bytes | None) -> None:
        """Fix what is published here, and write the request and the response where there is one.

        Args:
            outcome: the same for all clients that would publish the same bytes, and for no others.

        Raises:
            Contested: another client of this batch is publishing another outcome.
            Sealed: it was published meanwhile.
        """
        if self._begun == outcome:
            return
        with _faults_of_storage():
            await self._claims.begin(outcome)
            steps = [partial(self._compare, REQUEST, self._request, await self._create(REQUEST, self._request))]
            if response is not None:
                steps.append(partial(self.put_record, RESPONSE, response))
            await each(steps, len(steps), lambda step: step())
        self._begun = outcome

    async def holds(self, artifact: Artifact) -> bool:
        """Whether the artifact is already there with exactly these bytes."""
        key = self._key(artifact)
        with _faults_of_storage():
            info = await self._store.head(key)
            return info is not None and info.size == artifact.bytes and await self._same(key, info, artifact.sha256)

    def upload_early(self, artifact: Artifact, path: Path) -> Early | None:
        """Begin to upload a file that is still being downloaded to `path`; None where that cannot be.

        Nothing of it shows before `put`, and nothing stays of it without.
        """
        if not self._store.takes_growing(artifact.bytes):
            return None
        growing = Growing(path, artifact.bytes)
        upload = self._store.put_growing(self._key(artifact), growing, create=True)
        return Early(growing, asyncio.create_task(upload))

    async def put(self, artifact: Artifact, path: Path, early: Early | None = None) -> None:
        """Upload one verified file, or end its early upload, and read it back.

        Raises:
            IntegrityError: storage gives back other bytes, or holds others there and nothing is overwritten.
        """
        key, name = self._key(artifact), f"{ARTIFACTS}/{artifact.path}"
        async with self._uploads:
            with _faults_of_storage():
                written, info = True, await early.finish() if early else None
                try:
                    info = info or await self._store.put_file(key, path, create=True)
                except Conflict:
                    written, info = False, await self._there(key)
                if info.size != artifact.bytes or not await self._same(key, info, artifact.sha256):
                    raise _other_bytes(name, written=written)

    async def put_record(self, name: str, data: bytes) -> None:
        """Create a record, or find it there, and read it back. Raises IntegrityError as `put`."""
        with _faults_of_storage():
            await self._compare(name, data, await self._create(name, data))

    async def _create(self, name: str, data: bytes) -> ObjectInfo | None:
        """The object that was written; None where another one is there, compared already."""
        key = self._place.key(name)
        try:
            return await self._store.put_bytes(key, data, create=True)
        except Conflict:
            info = await self._there(key)
            if info.size == len(data) and await self._same(key, info, hashlib.sha256(data).hexdigest()):
                return None
            if name == REQUEST:
                raise self._claims.taken(f"its {REQUEST} is another one") from None
            raise _other_bytes(name, written=False) from None

    async def _compare(self, name: str, data: bytes, written: ObjectInfo | None) -> None:
        """Read back what `_create` wrote."""
        if written and not await self._same(self._place.key(name), written, hashlib.sha256(data).hexdigest()):
            raise _other_bytes(name, written=True)

    async def seal(self, provenance: bytes) -> dict[str, Any]:
        """Make it complete: compare everything that the record names once more, then create provenance.json.

        Returns:
            The manifest as it is stored: this one, or that of another client of this batch, verified.

        Raises:
            IntegrityError: an object is missing or altered, then nothing is sealed; or what is stored is damaged.
        """
        manifest: dict[str, Any] = await asyncio.to_thread(json.loads, provenance)
        with _faults_of_storage():
            if len(self._compared) > LISTED:  # a thousand versions by one request
                with suppress(StorageFailure):  # who may not list looks up each
                    self._listed = {info.key: info async for info in self._store.list(self._place.key(ARTIFACTS))}
            faults = await differences(self._place, manifest, read=self._confirm, reads=CONFIRMS)
            if faults:
                raise IntegrityError(
                    f"before the publication could be sealed, storage no longer held what was uploaded: {faults[0]}",
                    remedy="find out what else writes there, then run again with --resume",
                )
            created = True
            try:
                await self._store.put_bytes(self._place.key(PROVENANCE), provenance, create=True)
            except Conflict:
                created = await self._replace_torn(provenance)
            if await read_bytes(self._place, PROVENANCE) != provenance:
                if created or not await self._claims.sealed():
                    raise IntegrityError(
                        f"storage keeps other bytes for {PROVENANCE} than were written",
                        remedy="do not use that publication; check the storage and publish the batch to another place",
                        code="publication_damaged",
                    )
                manifest = await self.stored()
        await self._claims.forget()
        return manifest

    async def stored(self) -> dict[str, Any]:
        """The manifest of the publication that is there, verified.

        Raises:
            IntegrityError: code `publication_damaged`.
        """
        manifest = await verified_manifest(self._place)
        if manifest is None:
            raise StorageFailure(f"{PROVENANCE} was there and is not shown any more", code="storage_unavailable")
        await self._claims.forget()
        return manifest

    async def stored_response(self) -> bytes | None:
        """The response that a client of this batch is publishing; None where none is there yet."""
        return await read_bytes(self._place, RESPONSE)

    async def _replace_torn(self, provenance: bytes) -> bool:
        """Replace the empty file that older clients left where a file system has no hard links; False: it is none."""
        key = self._place.key(PROVENANCE)
        info = await self._store.head(key)
        if info is None or info.size:
            return False
        try:
            await self._store.swap(key, provenance, info)
        except Conflict:  # by another client of this batch
            return False
        return True

    async def _there(self, key: str) -> ObjectInfo:
        """What is at a key that a conditional PUT found taken."""
        info = await self._store.head(key)
        if info is None:
            raise StorageFailure("storage says that an object exists, and does not show it", code="storage_unavailable")
        return info

    async def _same(self, key: str, info: ObjectInfo, sha256: str) -> bool:
        """Whether this version of the object has these bytes, by reading it; then it need not be read again."""
        same = await self._store.read_back(key, info.size) == (info.size, sha256)
        if same:
            self._compared[key] = (info, sha256)
        return same

    async def _confirm(self, key: str) -> tuple[int, str]:
        """Size and SHA-256 of an object; one that is still the version that was read is not read again."""
        known = self._compared.get(key)
        if known is not None and known[0].etag:
            version = (known[0].size, known[0].etag)
            info = self._listed.get(key)
            if info is None or (info.size, info.etag) != version:
                info = await self._store.head(key)
            if info is not None and (info.size, info.etag) == version:
                return info.size, known[1]
        return await self._store.hash_object(key)

    def _key(self, artifact: Artifact) -> str:
        return self._place.key(f"{ARTIFACTS}/{artifact.path}")


def _other_bytes(name: str, *, written: bool) -> IntegrityError:
    if written:
        return IntegrityError(
            f"storage gives back other bytes for {name} than were uploaded",
            remedy="check the storage and anything between it and the client",
            code="output_occupied",
        )
    return IntegrityError(
        f"the output location holds other bytes for {name} than this batch's, and nothing there is overwritten",
        remedy="publish the batch to another place",
        code="output_occupied",
    )


def _require_distinct(names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise UsageError(
                f"the output location takes {other!r} and {name!r} for one name; one sample would hide the other",
                remedy="rename one of the samples, or publish to a location that tells upper from lower case",
                code="case_insensitive_location",
            )


@contextmanager
def _faults_of_storage() -> Iterator[None]:
    """What is no fault of the input once the place is ours: an object or bucket that is gone, or of another size."""
    try:
        yield
    except NotFound as error:
        raise StorageFailure(error.detail, remedy=error.remedy, code="storage_unavailable") from None
    except (LimitExceeded, RangeNotSatisfiable) as error:
        raise StorageFailure(error.detail, remedy=error.remedy, code="storage_failed") from None


def outcome_of(response: bytes | None, *recovered: str) -> str:
    """What `begin` takes: the response, and what else a recovered publication was made from (hashes, in order)."""
    parts = ["" if response is None else hashlib.sha256(response).hexdigest(), *recovered]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
