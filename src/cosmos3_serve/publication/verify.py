"""The verifier: is every object that a provenance.json declares there, with exactly the bytes it declares?

The client asks before it seals and when it resumes, the review before it shows anything, the audit of everything.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cosmos3_serve.errors import IntegrityError, LimitExceeded, NotFound, StorageFailure
from cosmos3_serve.publication.layout import ARTIFACTS, MAX_RECORD_BYTES, NATIVE, PROVENANCE, REQUEST, RESPONSE
from cosmos3_serve.publication.pool import each
from cosmos3_serve.storage.location import Location

READS = 8


@dataclass(frozen=True, slots=True)
class Declared:
    """An object that provenance.json declares: name below the place, bytes (None: not declared), SHA-256 in hex."""

    name: str
    size: int | None
    sha256: str


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one object; `name` is the object's name below the place."""

    name: str
    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.name} {self.message}"


Reader = Callable[[str], Awaitable[tuple[int, str]]]


def declared(manifest: Mapping[str, Any]) -> Iterator[Declared]:
    """Everything that the record declares by hash, in its order.

    Raises:
        ValueError: it is no provenance record; the message says where.
    """
    for name, field in ((REQUEST, "request_sha256"), (RESPONSE, "response_sha256")):
        digest = manifest.get(field) or ""
        if not isinstance(digest, str):
            raise ValueError(f"{field} is no text")
        if digest:
            yield Declared(name, None, digest)
    for item in _items(manifest, "artifacts"):
        yield _file(ARTIFACTS, item)
    recovery = manifest.get("recovery") or {}
    if not isinstance(recovery, dict):
        raise ValueError("recovery is no object")
    for item in _items(recovery, "natives"):
        if item.get("role") != "artifact":
            yield _file(NATIVE, item)


def _items(manifest: Mapping[str, Any], field: str) -> list[dict[str, Any]]:
    items = manifest.get(field) or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ValueError(f"{field} is no list of objects")
    return items


def _file(folder: str, item: Mapping[str, Any]) -> Declared:
    path, size, digest = item.get("path"), item.get("bytes"), item.get("sha256")
    if not isinstance(path, str) or type(size) is not int or not isinstance(digest, str):
        raise ValueError(f"a file of {folder} has no path, bytes and sha256")
    return Declared(f"{folder}/{path}", size, digest)


async def differences(
    place: Location, manifest: Mapping[str, Any], *, read: Reader | None = None, reads: int = READS
) -> list[Fault]:
    """Faults of all declared objects, sorted by name; empty when each is there and unaltered.

    Args:
        read: size and SHA-256 of the object with this full key; default: by reading all of it.
        reads: objects read at once.

    Raises:
        StorageFailure: storage would not tell, after retries.
    """
    read = read or place.store.hash_object
    try:
        wanted = list(declared(manifest))
    except ValueError as error:
        return [Fault(PROVENANCE, "invalid_record", f"is no provenance record: {error}")]
    found: list[Fault] = []

    async def compare(item: Declared) -> None:
        try:
            size, digest = await read(place.key(item.name))
        except NotFound as error:
            if error.stable_code != "object_not_found":
                raise
            found.append(Fault(item.name, "missing", "is missing"))
            return
        if item.size not in (None, size):
            found.append(Fault(item.name, "size_differs", f"has {size} bytes, declared are {item.size}"))
        elif digest != item.sha256:
            found.append(Fault(item.name, "sha256_differs", f"has SHA-256 {digest}, declared is {item.sha256}"))

    await each(wanted, min(reads, len(wanted)), compare)
    return sorted(found, key=lambda fault: fault.name)


async def require_intact(place: Location, manifest: Mapping[str, Any]) -> None:
    """
    Raises:
        IntegrityError: code `publication_damaged`, naming the first fault.
        StorageFailure: as `differences`.
    """
    faults = await differences(place, manifest)
    if faults:
        raise damaged(faults, str(place))


def damaged(faults: list[Fault], place: str) -> IntegrityError:
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return IntegrityError(
        f"the publication at {place} is complete by its provenance.json, but {faults[0]}{more}",
        remedy="do not use it; publish the batch to another location; `cosmos3 batch audit` names every fault",
        code="publication_damaged",
    )


async def verified_manifest(place: Location) -> dict[str, Any] | None:
    """The manifest of a complete publication, after reading back everything that it declares; None where none is.

    Raises:
        IntegrityError: code `publication_damaged`.
        StorageFailure: as `differences`.
    """
    manifest = await read_json(place, PROVENANCE)
    if manifest is not None:
        await require_intact(place, manifest)
    return manifest


async def read_json(place: Location, name: str) -> dict[str, Any] | None:
    """A JSON object below the place; None where there is none, an empty one where it is no JSON object.

    An empty object counts as none: file systems without hard links kept one where an older client was killed.
    """
    data = await read_bytes(place, name)
    if not data:
        return None
    try:
        found = await asyncio.to_thread(json.loads, data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


async def read_bytes(place: Location, name: str) -> bytes | None:
    """A record below the place as it is stored; None where there is none.

    Raises:
        StorageFailure: code `record_too_large`.
    """
    try:
        found = await place.store.get_bytes(place.key(name), max_bytes=MAX_RECORD_BYTES)
    except LimitExceeded:
        raise StorageFailure(f"{name} at {place} is too large to be read", code="record_too_large") from None
    return None if found is None else found[1]
