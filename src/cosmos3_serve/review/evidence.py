"""Shareable evidence: a record of one publication that names nobody and no place.

Built by allow-list: every field is a number, a hash, a version of fixed form, or a word of this file. No text of the
publication is copied, so a name that hides in any of its fields has no field here to come out of. `denyscan` looks
again, over the finished text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from cosmos3_serve.contract.modes import HINTS
from cosmos3_serve.contract.native import RULE_CODES
from cosmos3_serve.contract.provenance import Provenance
from cosmos3_serve.contract.records import SampleRecord, SampleState, Sha256
from cosmos3_serve.contract.wire import SHA256_HEX, SOURCE_REVISION
from cosmos3_serve.errors import SampleCode

SCHEMA: Final = "cosmos3.evidence.v1"
HEX40 = Annotated[str, StringConstraints(pattern=SOURCE_REVISION)]
# Three numbers, so that an IPv4 address is no version.
VERSION = r"^[0-9]{1,4}(\.[0-9]{1,4}){1,2}((a|b|rc|\.dev|\.post)[0-9]{1,4})?$"
Version = Annotated[str, StringConstraints(pattern=VERSION)]
EngineRevision = Annotated[str, StringConstraints(pattern=f"^diffusers-{VERSION[1:]}")]
ImageDigest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Capability = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,2}\.[0-9]$")]
Engine = Literal["framework", "diffusers"]
Backend = Literal["cosmos-framework-native-ray-serve", "diffusers-ray-serve"]
CheckpointId = Literal["nvidia/Cosmos3-Nano", "Cosmos3-Nano", "tiny"]
Mode = Literal[
    "text2image", "text2video", "image2image", "image2video", "video2video", "audio_image2video",
    "forward_dynamics", "inverse_dynamics", "wam", "reasoner",
]  # fmt: skip
Phase = Literal[
    "queue", "staging", "inference", "denoise", "decode", "encode", "hash",
    "submit_to_end", "delivery", "qualification", "publication",
]  # fmt: skip
Family = Literal[
    "B300", "B200", "GB200", "H200", "H100", "A100", "L40S", "L4", "RTX PRO 6000 Blackwell", "RTX 5090", "RTX 4090",
    "other",
]  # fmt: skip
Kind = Literal["vision", "control_edge", "control_blur", "control_depth", "control_seg", "control_wsm", "text", "other"]
CODES: Final = frozenset({*SampleCode, *RULE_CODES.values(), "contract_violation", "native_sample_missing"})
# Longest name first: `GB200` holds `B200`.
FAMILIES: Final = sorted((f for f in get_args(Family) if f != "other"), key=len, reverse=True)
Count = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Gpu(Record):
    """GPUs of one family, as `/system-info` named them when it was saved."""

    family: Family
    count: Annotated[int, Field(ge=1)]
    compute_capability: Capability | None = None


class SampleEvidence(Record):
    """One sample, by its place in the request from 0; its name stays where it is."""

    index: Count
    mode: Mode | None = None
    state: SampleState
    code: str | None = None
    seed: Seed | None = None
    num_frames: Count | None = None
    guardrails_applied: Count = 0
    timings_s: dict[Phase, float] = Field(default_factory=dict)
    coalesced: Count | None = None
    inference_batch: Count | None = None


class ArtifactEvidence(Record):
    """One file: which sample's (by index), what kind, and what decoding it showed."""

    sample: Count
    kind: Kind
    bytes: Count
    sha256: Sha256
    width: Count | None = None
    height: Count | None = None
    frames: Count | None = None


class RecoveryEvidence(Record):
    """That it was derived from retained outputs, and how many; the first attempt's recorded code where it is known."""

    source: Literal["service_ledger", "output_directory", "output_prefix"]
    response: Literal["ledger", "none"]
    native_files: Count
    first_attempt_code: str | None = None


class Evidence(Record):
    """The whole record. None means that the publication does not say it, or says it in a form that is not taken."""

    schema_version: Literal["cosmos3.evidence.v1"] = "cosmos3.evidence.v1"
    status: Literal["completed", "partial", "recovered"]
    backend: Backend | None
    engine: Engine | None
    engine_revision: HEX40 | EngineRevision | None
    server_source_revision: HEX40 | None
    client_version: Version | None
    image_digest: ImageDigest | None
    checkpoint: CheckpointId | None
    checkpoint_revision: HEX40 | None
    checkpoint_digest: Sha256 | None
    weights: Literal["random", "blockworld", "pretrained", "unknown"]
    guardrails_configured: bool | None
    gpus: list[Gpu] = Field(default_factory=list)
    max_batch_size: Count | None
    samples: list[SampleEvidence]
    artifacts: list[ArtifactEvidence]
    succeeded: Count
    missing: Count
    bytes: Count
    phases_s: dict[Phase, float]
    provenance_sha256: Sha256
    request_sha256: Sha256 | None
    response_sha256: Sha256 | None
    recovery: RecoveryEvidence | None = None


def evidence_of(record: Provenance, digest: str, system: Mapping[str, Any] | None = None) -> Evidence:
    """The evidence of a verified publication.

    Args:
        digest: SHA-256 of the bytes of its provenance.json.
        system: a saved answer of `GET /system-info`.
    """
    place = {name: index for index, name in enumerate(record.sample_names)}
    args = {r["args"].get("name"): r["args"] for r in record.structured_outputs if isinstance(r.get("args"), dict)}
    seen = {proof.path: proof for proof in record.media}
    checkpoint, recovery = record.checkpoint, record.recovery
    samples = [_sample(place[r.name], r, args.get(r.name, {})) for r in record.samples if r.name in place]
    attempt = recovery.first_attempt if recovery else None
    return Evidence(
        status=record.status,
        backend=_of(Backend, record.backend),
        engine=_of(Engine, record.engine.engine if record.engine else None),
        engine_revision=_fits(f"{SOURCE_REVISION}|^diffusers-{VERSION[1:]}", record.framework_revision),
        server_source_revision=_fits(SOURCE_REVISION, record.server_source_revision),
        client_version=_fits(VERSION, record.client_version),
        image_digest=_fits(r"^sha256:[0-9a-f]{64}$", record.runtime_image.rpartition("@")[2]),
        checkpoint=_of(CheckpointId, checkpoint.id if checkpoint else None),
        checkpoint_revision=_fits(SOURCE_REVISION, checkpoint.revision if checkpoint else None),
        checkpoint_digest=_fits(
            r"^[0-9a-f]{64}$", (checkpoint.digest or "").removeprefix("sha256:") if checkpoint else ""
        ),
        weights=record.weights,
        guardrails_configured=record.guardrails,
        gpus=_gpus(system or {}),
        max_batch_size=record.max_batch_size,
        samples=samples,
        artifacts=[
            ArtifactEvidence(
                sample=place[item.sample],
                kind=_kind(item.path),
                bytes=item.bytes,
                sha256=item.sha256,
                **(seen[item.path].model_dump(include={"width", "height", "frames"}) if item.path in seen else {}),
            )
            for item in record.artifacts
            if item.sample in place
        ],
        succeeded=sum(sample.state is SampleState.SUCCEEDED for sample in samples),
        missing=len(record.missing),
        bytes=sum(item.bytes for item in record.artifacts),
        phases_s=_phases(record.phases),
        provenance_sha256=digest,
        request_sha256=_fits(SHA256_HEX, record.request_sha256),
        response_sha256=_fits(SHA256_HEX, record.response_sha256),
        recovery=RecoveryEvidence(
            source=recovery.source,
            response=recovery.response,
            native_files=len(recovery.natives),
            first_attempt_code=_code(attempt.failure_code if attempt else None),
        )
        if recovery
        else None,
    )


def _sample(index: int, record: SampleRecord, args: Mapping[str, Any]) -> SampleEvidence:
    checks = record.guardrails.get("checks")
    rows = [row for row in checks if isinstance(row, dict)] if isinstance(checks, list) else []
    frames, seed = args.get("num_frames"), record.seed
    return SampleEvidence(
        index=index,
        mode=_of(Mode, args.get("model_mode")),
        state=record.state,
        code=_code(record.code),
        seed=seed if seed is not None and -(2**63) <= seed < 2**63 else None,
        num_frames=frames if type(frames) is int and 0 <= frames < 2**31 else None,
        guardrails_applied=sum(row.get("decision") in ("passed", "altered", "blocked") for row in rows),
        timings_s=_phases(record.timings),
        coalesced=record.wave.coalesced if record.wave else None,
        inference_batch=record.wave.inference_batch if record.wave else None,
    )


def _of(allowed: Any, value: object) -> Any:
    """The value where it is one of the words, else None."""
    return value if isinstance(value, str) and value in get_args(allowed) else None


def _fits(pattern: str, value: object) -> str | None:
    # `$` alone would let a line end through.
    ok = isinstance(value, str) and re.search(pattern, value) is not None and value.isprintable()
    return value if ok and isinstance(value, str) else None


def _code(value: str | None) -> str | None:
    return value if value in CODES else None if value is None else "other"


def _phases(found: Mapping[str, float]) -> dict[Phase, float]:
    return {phase: round(found[phase], 6) for phase in get_args(Phase) if phase in found}


def _kind(path: str) -> Kind:
    stem = path.rsplit("/", 1)[-1].partition(".")[0]
    kinds: dict[str, Kind] = {"vision": "vision", "reasoner_text": "text"}
    for hint in HINTS:
        kinds[f"control_{hint}"] = f"control_{hint}"  # type: ignore[assignment]
    return kinds.get(stem, "other")


def _gpus(system: Mapping[str, Any]) -> list[Gpu]:
    """Counts by family and capability; a name that is not known counts as `other`."""
    counts: dict[tuple[Family, str | None], int] = {}
    listed = system.get("accelerators")
    for item in listed if isinstance(listed, list) else []:
        if not isinstance(item, dict):
            continue
        name = str(item.get("name", ""))
        words = set(re.split(r"[\s\-_]+", name.upper()))
        known = (f for f in FAMILIES if set(f.upper().split()) <= words)
        family: Family = next(known, "other")
        key = (family, _fits(r"^[0-9]{1,2}\.[0-9]$", item.get("compute_capability")))
        counts[key] = counts.get(key, 0) + 1
    return [
        Gpu(family=family, count=count, compute_capability=cc)
        for (family, cc), count in sorted(counts.items(), key=str)
    ]
