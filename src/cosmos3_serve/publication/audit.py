"""The audit of one publication, from its objects alone: is it complete, unaltered and consistent with itself?

    listing        every declared object is there, and no other object is
    bytes          size and SHA-256 of each, read once
    media          each picture, clip and text decodes to what its sample's resolved arguments say
    record         provenance.json agrees with request.json and response.json, field by field

Nothing is taken from a client, a journal or a service. All faults are listed, not only the first.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cosmos3_serve.contract.batch import BatchRequest
from cosmos3_serve.contract.binding import PartialBinding, bind_partial
from cosmos3_serve.contract.jsontext import decode_json
from cosmos3_serve.contract.provenance import MediaProof, Provenance
from cosmos3_serve.contract.records import Artifact
from cosmos3_serve.errors import ContractViolation, InputError, IntegrityError, NotFound, StorageFailure
from cosmos3_serve.publication import answers
from cosmos3_serve.publication.decode import Decoder
from cosmos3_serve.publication.expect import expectation
from cosmos3_serve.publication.layout import ARTIFACTS, NATIVE, PROVENANCE, REQUEST, RESPONSE, is_bookkeeping
from cosmos3_serve.publication.pool import each
from cosmos3_serve.publication.verify import Fault, read_bytes
from cosmos3_serve.storage.files import in_thread
from cosmos3_serve.storage.location import Location

READS = 4
# Fields of the record that a response's say, by the response's names.
SAID = ("model", "guardrails", "max_batch_size", "framework_revision", "server_source_revision", "engine", "checkpoint")


class Outcome(StrEnum):
    INTACT = "intact"
    FAULTY = "faulty"
    UNFINISHED = "unfinished"  # claimed or begun, and not sealed
    ABSENT = "absent"


@dataclass(slots=True)
class Audit:
    """What was found at one place. `bytes` were read; `status` and `request_id` are those of the record,
    `record_sha256` is of its bytes."""

    place: str
    outcome: Outcome = Outcome.INTACT
    status: str = ""
    request_id: str = ""
    record_sha256: str = ""
    samples: int = 0
    artifacts: int = 0
    bytes: int = 0
    faults: list[Fault] = field(default_factory=list)

    def fault(self, name: str, code: str, message: str) -> None:
        self.faults.append(Fault(name, code, message))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"outcome": str(self.outcome)}


async def audit(place: Location, decoder: Decoder, *, reads: int = READS) -> Audit:
    """Audit what lies at `place`.

    Args:
        reads: artifacts read at once, each into a temporary file.

    Raises:
        StorageFailure: storage would not tell, after retries; nothing is known then.
    """
    found = Audit(str(place))
    start = len(place.key("")) if place.prefix else 0
    listed = {info.key[start:]: info.size async for info in place.store.list(place.prefix)}
    names = {name for name in listed if not is_bookkeeping(name)}
    data = await read_bytes(place, PROVENANCE)
    if data and PROVENANCE not in names:
        raise _listing_lacks(place, PROVENANCE)
    if not data:
        begun = names & {REQUEST, RESPONSE, PROVENANCE} or len(names) < len(listed)
        found.outcome = Outcome.UNFINISHED if begun else Outcome.ABSENT
        return found
    found.bytes += len(data)
    found.record_sha256 = (await in_thread(hashlib.sha256, data)).hexdigest()
    if await in_thread(_schema, data) == answers.SCHEMA:
        return await _audit_answers(place, found, data, names)
    try:
        record = Provenance.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or PROVENANCE
        found.fault(PROVENANCE, "invalid_record", f"is no provenance record: {where}: {first['msg']}")
        found.outcome = Outcome.FAULTY
        return found
    found.status, found.request_id = record.status, record.request_id
    found.samples, found.artifacts = len(record.sample_names), len(record.artifacts)
    await _check_listing(place, found, record, names)
    records = await _records(place, found, record, names)
    with tempfile.TemporaryDirectory(prefix="cosmos3-audit-") as folder:
        await _Artifacts(place, found, record, decoder, Path(folder)).check(names, reads)
    await in_thread(_check_record, found, record, records)
    found.faults.sort(key=lambda fault: (fault.name, fault.code))
    found.outcome = Outcome.FAULTY if found.faults else Outcome.INTACT
    return found


def _schema(data: bytes) -> object:
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return record.get("schema_version") if isinstance(record, dict) else None


async def _audit_answers(place: Location, found: Audit, data: bytes, names: set[str]) -> Audit:
    record = await answers.check_answers(place, data, names, found.fault)
    if record is not None:
        found.status, found.request_id = record.status, record.request_id
        found.samples, found.artifacts = record.questions, len(record.artifacts)
        found.bytes += sum(item.bytes for item in record.artifacts)
    found.faults.sort(key=lambda fault: (fault.name, fault.code))
    found.outcome = Outcome.FAULTY if found.faults else Outcome.INTACT
    return found


def _listing_lacks(place: Location, name: str) -> StorageFailure:
    """What is not listed cannot be audited, so nothing is said of the place."""
    return StorageFailure(f"the listing of {place} lacks {name}, which is there", code="storage_unavailable")


def _natives(record: Provenance) -> dict[str, tuple[int, str]]:
    natives = record.recovery.natives if record.recovery else []
    return {f"{NATIVE}/{item.path}": (item.bytes, item.sha256) for item in natives if item.role != "artifact"}


async def _check_listing(place: Location, found: Audit, record: Provenance, names: set[str]) -> None:
    wanted = {REQUEST, PROVENANCE, *_natives(record)} | {f"{ARTIFACTS}/{item.path}" for item in record.artifacts}
    if record.status != "recovered" or record.response_sha256:
        wanted.add(RESPONSE)
    for name in wanted - names:
        if await place.store.head(place.key(name)) is not None:
            raise _listing_lacks(place, name)
        found.fault(name, "missing", "is missing")
    for name in names - wanted:
        found.fault(name, "undeclared", "is not declared by provenance.json")
    paths = [item.path for item in record.artifacts]
    for path in sorted({path for path in paths if paths.count(path) > 1} if len(set(paths)) < len(paths) else ()):
        found.fault(f"{ARTIFACTS}/{path}", "declared_twice", "is declared twice")


async def _records(place: Location, found: Audit, record: Provenance, names: set[str]) -> dict[str, bytes]:
    """The JSON objects of the publication, compared with their hashes."""
    hashes: dict[str, tuple[int | None, str]] = {
        REQUEST: (None, record.request_sha256),
        RESPONSE: (None, record.response_sha256),
    }
    hashes |= _natives(record)
    read: dict[str, bytes] = {}
    for name in sorted(hashes.keys() & names):
        size, digest = hashes[name]
        data = await read_bytes(place, name)
        if data is None:
            found.fault(name, "missing", "was removed while the place was audited")
            continue
        found.bytes += len(data)
        read[name] = data
        got = (await in_thread(hashlib.sha256, data)).hexdigest()
        if not digest:
            found.fault(name, "unhashed", "has no hash in provenance.json, so nobody can tell whether it was altered")
        elif size not in (None, len(data)):
            found.fault(name, "size_differs", f"has {len(data)} bytes, declared are {size}")
        elif got != digest:
            found.fault(name, "sha256_differs", f"has SHA-256 {got}, declared is {digest}")
    return read


@dataclass(slots=True)
class _Artifacts:
    """Each artifact is fetched into a temporary file, hashed on the way, decoded, and removed."""

    place: Location
    found: Audit
    record: Provenance
    decoder: Decoder
    folder: Path

    async def check(self, names: set[str], reads: int) -> None:
        args = args_of(self.record.structured_outputs)
        proofs = {proof.path: proof for proof in self.record.media}
        items = [
            (number, item) for number, item in enumerate(self.record.artifacts) if f"{ARTIFACTS}/{item.path}" in names
        ]

        async def one(numbered: tuple[int, Artifact]) -> None:
            number, item = numbered
            await self._one(item, self.folder / str(number), args.get(item.sample), proofs.get(item.path))

        await each(items, min(reads, len(items)), one)

    async def _one(self, item: Artifact, path: Path, args: Mapping[str, Any] | None, proof: MediaProof | None) -> None:
        name = f"{ARTIFACTS}/{item.path}"
        try:
            got = await self.place.store.download(self.place.key(name), path)
        except NotFound:
            self.found.fault(name, "missing", "was removed while the place was audited")
            return
        try:
            self.found.bytes += got.size
            if got.size != item.bytes:
                self.found.fault(name, "size_differs", f"has {got.size} bytes, declared are {item.bytes}")
            elif got.sha256 != item.sha256:
                self.found.fault(name, "sha256_differs", f"has SHA-256 {got.sha256}, declared is {item.sha256}")
            await self._decode(name, path, item, args, proof)
        finally:
            await in_thread(path.unlink, missing_ok=True)

    async def _decode(
        self, name: str, path: Path, item: Artifact, args: Mapping[str, Any] | None, proof: MediaProof | None
    ) -> None:
        expect = expectation(item.path, dict(args or {}))
        if expect is None:
            return
        try:
            seen = await self.decoder.check(path, expect, name=item.path)
        except IntegrityError as error:
            self.found.fault(name, "undecodable", f"does not decode as declared: {error.detail}")
            return
        if proof is not None and seen != proof:
            self.found.fault(name, "media_differs", "decodes to another size or length than provenance.json says")


def args_of(outputs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Resolved arguments by sample name, of results that have both."""
    found = {}
    for output in outputs:
        args = output.get("args")
        if isinstance(args, dict) and isinstance(args.get("name"), str):
            found[args["name"]] = args
    return found


def _check_record(found: Audit, record: Provenance, records: Mapping[str, bytes]) -> None:
    if REQUEST not in records:
        return
    try:
        request = BatchRequest.model_validate(decode_json(records[REQUEST]))
        names = request.names
    except (InputError, ValidationError, KeyError, TypeError):
        found.fault(REQUEST, "invalid_request", "is no batch")
        return
    _same(found, "request_id", record.request_id, request.request_id, REQUEST)
    _same(found, "sample_names", record.sample_names, names, REQUEST)
    _same(found, "model", record.model, request.model, REQUEST)
    _same(found, "batch_size", record.batch_size, len(names), PROVENANCE)
    missing, covered = set(record.missing), {item.sample for item in record.artifacts}
    for name in sorted((missing | covered) - set(names)):
        found.fault(PROVENANCE, "foreign_sample", f"names the sample {name!r}, which was not requested")
    for name in (name for name in names if (name in covered) == (name in missing)):
        said = "has artifacts and is called missing" if name in covered else "has neither artifacts nor a word why not"
        found.fault(PROVENANCE, "coverage", f"sample {name!r} {said}")
    if (record.status == "completed") == bool(record.missing) and record.status != "recovered":
        found.fault(PROVENANCE, "status", f"says {record.status} with {len(record.missing)} missing samples")
    if RESPONSE in records:
        _check_response(found, record, request, records[RESPONSE])
    if record.recovery is not None:
        retained = {item.path: (item.bytes, item.sha256) for item in record.recovery.natives if item.role == "artifact"}
        declared = {item.path: (item.bytes, item.sha256) for item in record.artifacts}
        _same(found, "artifacts", declared, retained, "recovery.natives")


def _check_response(found: Audit, record: Provenance, request: BatchRequest, data: bytes) -> None:
    try:
        bound = bind_partial(request, decode_json(data), expected_revision=record.framework_revision or "")
    except (ContractViolation, InputError) as error:
        found.fault(RESPONSE, "response_violates", f"does not answer request.json: {error.detail}")
        return
    response = bound.response
    for name in SAID:
        _same(found, name, getattr(record, name), getattr(response, name), RESPONSE)
    if response.backend is not None:
        _same(found, "backend", record.backend, response.backend, RESPONSE)
    _same(found, "weights", record.weights, response.weights or "unknown", RESPONSE)
    if record.status == "recovered":  # qualified from what was retained: it may hold less than the response says
        return
    _same(found, "structured_outputs", record.structured_outputs, response.outputs, RESPONSE)
    if response.samples:
        _same(found, "samples", record.samples, response.samples, RESPONSE)
    _check_bound(found, record, bound)


def _check_bound(found: Audit, record: Provenance, bound: PartialBinding) -> None:
    wanted = {item.path: item for item in bound.artifacts}
    declared = {item.path: item for item in record.artifacts}
    for path in sorted(wanted.keys() | declared.keys()):
        if wanted.get(path) != declared.get(path):
            what = "is not declared as" if path in declared and path in wanted else "is declared by only one of"
            found.fault(f"{ARTIFACTS}/{path}", "response_differs", f"{what} response.json and provenance.json say")
    _same(found, "missing", sorted(record.missing), sorted(v.name for v in bound.missing), RESPONSE)
    args = args_of(bound.response.outputs)
    for name in bound.complete:
        seed = args[name].get("seed")
        if record.seeds and type(seed) is int and record.seeds.get(name) != seed:
            found.fault(PROVENANCE, "seed_differs", f"says seed {record.seeds.get(name)} of {name!r}, used was {seed}")


def _same(found: Audit, what: str, got: object, wanted: object, source: str) -> None:
    if got != wanted:
        found.fault(PROVENANCE, "record_differs", f"has another {what} than {source}")


async def audit_place(place: Location, *, reads: int = READS) -> Audit:
    """`audit` with a decoder of its own."""
    async with Decoder() as decoder:
        return await audit(place, decoder, reads=reads)
