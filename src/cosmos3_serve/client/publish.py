"""Publication: one batch owns one output location, and `provenance.json` is there only when it is true.

    request.json      created only if free: the claim, and who holds it
    artifacts/…       each read back by size and SHA-256
    response.json     the exact bytes received
    native/…          in a recovered publication, the engine's own records that it was derived from
    provenance.json   last, created only if free: its presence means complete

Every step may be repeated by a later process of the same batch. Objects of others under the location stay untouched.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from enum import StrEnum
from pathlib import Path
from typing import Any

from cosmos3_serve.client.http import MIB
from cosmos3_serve.contract.records import Artifact
from cosmos3_serve.errors import Conflict, IntegrityError, StorageFailure
from cosmos3_serve.storage.location import Location

REQUEST, RESPONSE, PROVENANCE = "request.json", "response.json", "provenance.json"
NATIVE = "native"
MAX_RECORD_BYTES = 512 * MIB
UPLOADS = 2  # each holds some multipart pieces in memory


class Found(StrEnum):
    """What is at the location."""

    FREE = "free"
    OURS = "ours"  # claimed by this batch, not complete
    COMPLETE = "complete"  # published by this batch


def published_uri(output_path: str) -> str:
    """S3: the given text with exactly one trailing slash; a directory: as given (source: wire baseline 4, step 8)."""
    return output_path.rstrip("/") + "/" if output_path.startswith("s3://") else output_path


class Publication:
    """One output location on behalf of one batch.

    Every method raises:
        Conflict: code `publication_exists`: the location holds another batch.
        StorageFailure: storage would not, after retries.
    """

    def __init__(self, place: Location, request: bytes, request_id: str) -> None:
        self._place, self._request, self._id = place, request, request_id
        self._store = place.store
        self._uploads = asyncio.Semaphore(UPLOADS)

    async def look(self) -> Found:
        """Who holds the location; changes nothing."""
        manifest = await read_json(self._place, PROVENANCE)
        if manifest is not None:
            if manifest.get("request_id") != self._id:
                raise self._taken(PROVENANCE)
            return Found.COMPLETE
        claim = await read_bytes(self._place, REQUEST)
        if claim is None:
            return Found.FREE
        if claim != self._request:
            raise self._taken(REQUEST)
        return Found.OURS

    async def prove(self) -> None:
        """Before anything is generated: whether what is generated could be published.

        Raises:
            StorageFailure: code `conditional_put_unsupported`, or writing is not allowed.
        """
        await self._store.prove(self._place.prefix)

    async def claim(self) -> None:
        await self._create(REQUEST, self._request)

    async def holds(self, artifact: Artifact) -> bool:
        """Whether the artifact is already there with exactly these bytes."""
        key = self._key(artifact)
        info = await self._store.head(key)
        if info is None or info.size != artifact.bytes:
            return False
        return await self._store.hash_object(key) == (artifact.bytes, artifact.sha256)

    async def put(self, artifact: Artifact, path: Path) -> None:
        """Upload one verified file and read it back.

        Raises:
            IntegrityError: storage gives back other bytes.
        """
        async with self._uploads:
            key = self._key(artifact)
            await self._store.put_file(key, path)
            if await self._store.read_back(key) != (artifact.bytes, artifact.sha256):
                raise IntegrityError(
                    f"storage gives back other bytes for artifacts/{artifact.path} than were uploaded",
                    remedy="check the storage and anything between it and the client, then run again with --resume",
                )

    async def put_record(self, name: str, data: bytes) -> None:
        """Store a record and read it back. Raises IntegrityError as `put`."""
        key = self._place.key(name)
        await self._store.put_bytes(key, data)
        if await self._store.read_back(key) != (len(data), hashlib.sha256(data).hexdigest()):
            raise IntegrityError(f"storage gives back other bytes for {name} than were uploaded")

    async def seal(self, response: bytes | None, provenance: bytes) -> None:
        """Make it complete: response.json where there is one, read back, then provenance.json."""
        if response is not None:
            await self.put_record(RESPONSE, response)
        try:
            await self._create(PROVENANCE, provenance)
        except Conflict:
            # Another process of this very batch was first: what it published is the same and verified.
            if await self.look() is not Found.COMPLETE:
                raise

    async def _create(self, name: str, data: bytes) -> None:
        try:
            await self._store.put_bytes(self._place.key(name), data, create=True)
        except Conflict:
            # Ours if it holds our bytes: an answer was lost, or an earlier process got this far.
            if await read_bytes(self._place, name) != data:
                raise self._taken(name) from None

    def _key(self, artifact: Artifact) -> str:
        return self._place.key(f"artifacts/{artifact.path}")

    def _taken(self, name: str) -> Conflict:
        return Conflict(
            f"the output location already holds the publication of another batch ({name})",
            remedy="choose another --output-path; a publication is never overwritten",
            code="publication_exists",
        )


async def verified_manifest(place: Location) -> dict[str, Any] | None:
    """The manifest of a complete publication, after reading back everything that it declares; None where none is.

    Raises:
        IntegrityError: code `publication_damaged`.
    """
    manifest = await read_json(place, PROVENANCE)
    if manifest is None:
        return None
    for name, field in ((REQUEST, "request_sha256"), (RESPONSE, "response_sha256")):
        digest = manifest.get(field)
        if digest and (await _hash(place, name))[1] != digest:
            raise _damaged(name)
    for item in manifest.get("artifacts", []):
        if await _hash(place, f"artifacts/{item['path']}") != (item["bytes"], item["sha256"]):
            raise _damaged(f"artifacts/{item['path']}")
    for item in (manifest.get("recovery") or {}).get("natives", []):
        name = f"{NATIVE}/{item['path']}"
        if item["role"] != "artifact" and await _hash(place, name) != (item["bytes"], item["sha256"]):
            raise _damaged(name)
    return manifest


async def read_json(place: Location, name: str) -> dict[str, Any] | None:
    """A JSON object of the publication; None where there is none, an empty one where it is no JSON object."""
    data = await read_bytes(place, name)
    if data is None:
        return None
    try:
        found = await asyncio.to_thread(json.loads, data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


async def read_bytes(place: Location, name: str) -> bytes | None:
    """A record of the publication as it is stored; None where there is none."""
    key = place.key(name)
    info = await place.store.head(key)
    if info is None:
        return None
    if info.size > MAX_RECORD_BYTES:
        raise StorageFailure(f"{name} at the output location is too large to be read", code="record_too_large")
    return b"".join([chunk async for chunk in place.store.get_stream(key, max_bytes=MAX_RECORD_BYTES)])


async def _hash(place: Location, name: str) -> tuple[int, str]:
    key = place.key(name)
    return await place.store.hash_object(key) if await place.store.head(key) else (0, "")


def _damaged(name: str) -> IntegrityError:
    return IntegrityError(
        f"the publication is complete by its provenance.json, but {name} is missing or has other bytes",
        remedy="do not use it; publish the batch to another location",
        code="publication_damaged",
    )
