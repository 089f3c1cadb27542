"""A publication as a reviewer needs it: one card per sample, failed ones included, read from S3 or a directory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ValidationError

from cosmos3_serve.contract.provenance import Provenance
from cosmos3_serve.contract.records import Artifact, SampleRecord, SampleState
from cosmos3_serve.contract.wire import VISION_IMAGE, VISION_VIDEO
from cosmos3_serve.errors import InputError, NotFound
from cosmos3_serve.publication.layout import PROVENANCE, REQUEST
from cosmos3_serve.publication.verify import Fault, damaged, require_intact
from cosmos3_serve.storage.location import Location, open_store

OUTPUT_CHECKS = ("media", "output")  # what begins otherwise is named by the text that was checked
MAX_PROVENANCE_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Card:
    """What a reviewer sees of one sample. `code` is empty where it succeeded; paths are artifact paths."""

    name: str
    mode: str
    prompt: str
    seed: int | None
    code: str
    message: str
    guardrails: str
    frames: int | None
    fps: float | None
    action: tuple[int, int] | None
    media: str | None
    controls: tuple[str, ...]
    files: tuple[Artifact, ...] = ()

    @property
    def failed(self) -> bool:
        return bool(self.code)


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication that is there: `provenance.json` was read and has the contract's shape.

    `digest` is the SHA-256 of its bytes. `declared` (path to size and SHA-256) is set by `verify`; from then on every
    file is compared again with it when it is fetched.
    """

    place: Location
    provenance: Provenance
    cards: tuple[Card, ...]
    digest: str
    declared: Mapping[str, tuple[int, str]] | None = None

    @property
    def engine(self) -> str:
        record = self.provenance.engine
        revision = record.revision if record else self.provenance.framework_revision
        if revision is None:
            return "unknown"  # recovered without a response: nobody recorded it
        short = revision[:12] if len(revision) == 40 else revision
        return short if record is None or short.startswith(record.engine) else f"{record.engine} {short}"

    async def fetch(self, artifact: str, folder: Path) -> Path:
        """A local copy of one artifact in `folder`. Raises as `ObjectStore.download`; IntegrityError if verified."""
        path = folder / PurePosixPath(artifact).name
        got = await self.place.store.download(self.place.key(f"artifacts/{artifact}"), path)
        if self.declared is not None and self.declared.get(artifact) != (got.size, got.sha256):
            fault = Fault(f"artifacts/{artifact}", "altered", "was altered while it was read")
            raise damaged([fault], str(self.place))
        return path

    async def verify(self) -> Publication:
        """The same publication, proven to hold every byte that its provenance declares.

        Raises:
            IntegrityError: code `publication_damaged`.
            StorageFailure.
        """
        if (
            not self.provenance.request_sha256
        ):  # as the baseline's client wrote it: nobody can tell whether it is intact
            raise damaged([Fault(REQUEST, "unhashed", "has no hash in provenance.json")], str(self.place))
        await require_intact(self.place, self.provenance.model_dump(mode="json"))
        declared = {item.path: (item.bytes, item.sha256) for item in self.provenance.artifacts}
        return replace(self, declared=declared)


async def read_publication(location: str, scratch: Path, environ: Mapping[str, str] | None = None) -> Publication:
    """Read the publication at `s3://bucket/prefix` or in a local directory; `scratch` is an existing directory.

    Raises:
        NotFound: code `no_publication`: there is no provenance.json, so nothing complete was published there.
        InputError: code `invalid_publication`: provenance.json has another shape.
        StorageFailure, UsageError, StorageAuthorizationError: as `open_store` and `ObjectStore.download`.
    """
    place = open_store(location, environ)
    path = scratch / PROVENANCE
    try:
        await place.store.download(place.key(PROVENANCE), path, max_bytes=MAX_PROVENANCE_BYTES)
    except NotFound:
        raise NotFound(
            f"there is no {PROVENANCE} at {place}",
            code="no_publication",
            remedy="a publication is complete once its provenance.json is there; continue with ray-batch --resume",
        ) from None
    try:
        data = path.read_bytes()
        provenance = Provenance.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or PROVENANCE
        raise InputError(
            f"{PROVENANCE} at {place} is not a provenance record: {where}: {first['msg']}", code="invalid_publication"
        ) from None
    return Publication(place, provenance, cards_of(provenance), hashlib.sha256(data).hexdigest())


def cards_of(provenance: Provenance) -> tuple[Card, ...]:
    """One card per requested sample, in request order, whether or not it has a result."""
    results: dict[str, dict[str, Any]] = {}
    for result in provenance.structured_outputs:
        name = (result.get("args") or {}).get("name")
        if isinstance(name, str):
            results[name] = result
    records = {record.name: record for record in provenance.samples}
    files: dict[str, list[Artifact]] = {}
    for artifact in provenance.artifacts:
        files.setdefault(artifact.sample, []).append(artifact)
    return tuple(
        _card(name, results.get(name, {}), records.get(name), files.get(name, []), provenance)
        for name in provenance.sample_names
    )


def _card(
    name: str, result: dict[str, Any], record: SampleRecord | None, files: list[Artifact], provenance: Provenance
) -> Card:
    args = result.get("args") or {}
    code, message = _failure(result, record)
    names = {PurePosixPath(file.path).name: file.path for file in files}
    actions = [out.get("content", {}).get("action") for out in result.get("outputs") or []]
    return Card(
        name=name,
        mode=str(args.get("model_mode") or ""),
        prompt=str(args.get("prompt") or ""),
        seed=provenance.seeds.get(name, args.get("seed")),
        code=code,
        message=message,
        guardrails=_guardrails(record, provenance.guardrails),
        frames=args.get("num_frames"),
        fps=args.get("fps"),
        action=next((size for action in actions if (size := _matrix(action))), None),
        media=names.get(VISION_IMAGE) or names.get(VISION_VIDEO),
        controls=tuple(names[key] for key in sorted(names) if key.startswith("control_")),
        files=tuple(files),
    )


def _failure(result: dict[str, Any], record: SampleRecord | None) -> tuple[str, str]:
    if record and record.state is not SampleState.SUCCEEDED:
        return record.code or record.state.value, record.message or ""
    if not result:
        return "missing", "no result was published"
    status = result.get("status")
    return ("", "") if status == "success" else (str(status), str(result.get("message") or ""))


def _guardrails(record: SampleRecord | None, configured: bool | None) -> str:
    """What is known about the checks of one sample; a configured flag alone is not evidence that they ran."""
    if configured is None:
        return "guardrails unknown"
    if not configured:
        return "guardrails off"
    if record and record.code in ("guardrail_blocked", "guardrail_failed"):
        return f"guardrails {record.code.removeprefix('guardrail_')}"
    checks = record.guardrails.get("checks") if record else None
    rows = [row for row in checks if isinstance(row, dict)] if isinstance(checks, list) else []
    decided = [str(row.get("check")) for row in rows if row.get("decision") in ("passed", "altered", "blocked")]
    if not decided:
        return "guardrails on, no record"
    outputs = sum(check.startswith(OUTPUT_CHECKS) for check in decided)
    return f"guardrails: {len(decided) - outputs} text, {outputs} output checks applied"


def _matrix(action: object) -> tuple[int, int] | None:
    """Rows and columns of an action, however deeply its list of rows is wrapped."""
    while (
        isinstance(action, list)
        and action
        and isinstance(action[0], list)
        and action[0]
        and isinstance(action[0][0], list)
    ):
        action = action[0]
    if isinstance(action, list) and action and isinstance(action[0], list):
        return len(action), len(action[0])
    return None
