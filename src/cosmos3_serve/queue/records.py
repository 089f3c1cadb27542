"""The records of a queue, at the output place and in its index."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

MIN_BODY_BYTES = 4096


class Record(BaseModel):
    """Base: frozen, newer fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def to_bytes(self) -> bytes:
        return self.model_dump_json(indent=1).encode() + b"\n"


class Kind(StrEnum):
    """What the parts of a queue are."""

    GENERATOR = "generator"
    REASONER = "reasoner"


class PlannedPart(Record):
    """One part: its name, the id under which it is posted, how many samples, and size and SHA-256 of its batch."""

    name: str
    request_id: str
    samples: int
    bytes: int
    sha256: str


class Limits(Record):
    """What one POST may carry."""

    max_samples: int = Field(1024, ge=1)
    max_body_bytes: int = Field(8 * 1024 * 1024, ge=MIN_BODY_BYTES)


class Plan(Record):
    """What the queue is; created once and never changed.

    Attributes:
        kind: which service the parts are for.
        source: what --input-path named, for people.
        source_sha256: hash over all input bytes, in order: who joins with an input must have the same.
    """

    schema_version: Literal["cosmos3.queue.plan.v1"] = "cosmos3.queue.plan.v1"
    kind: Kind = Kind.GENERATOR
    queue_id: str
    created_at: float
    source: str
    source_sha256: str
    limits: Limits
    parts: tuple[PlannedPart, ...]

    @property
    def samples(self) -> int:
        return sum(part.samples for part in self.parts)


class Wanted(StrEnum):
    """What people want of the queue."""

    RUNNING = "running"
    PAUSED = "paused"  # parts that run end, no new one begins
    CANCELLED = "cancelled"  # parts that run are cancelled at their services


class Control(Record):
    wanted: Wanted = Wanted.RUNNING


class FailedSample(Record):
    name: str
    code: str
    message: str = ""


class PartStatus(StrEnum):
    COMPLETED = "completed"
    PARTIAL = "partial"
    FAILED = "failed"  # nothing of it is published


class PartResult(Record):
    """How a part ended, for good. Holds nothing that two workers would write differently of one publication.

    Attributes:
        manifest_sha256: of its provenance.json; None where nothing is published.
        code: why nothing is published.
    """

    name: str
    status: PartStatus
    samples: int
    succeeded: int
    manifest_sha256: str | None = None
    code: str | None = None
    message: str = ""
    failed: tuple[FailedSample, ...] = ()


def given_up(part: PlannedPart, code: str, message: str, failed: Iterable[FailedSample]) -> PartResult:
    """The result of a part of which nothing will be published."""
    return PartResult(
        name=part.name,
        status=PartStatus.FAILED,
        samples=part.samples,
        succeeded=0,
        code=code,
        message=message,
        failed=tuple(failed),
    )


class Index(Record):
    """`index.json`: created last, when every part has ended."""

    schema_version: Literal["cosmos3.queue.index.v1"] = "cosmos3.queue.index.v1"
    queue_id: str
    status: Literal["completed", "partial", "failed"]
    source: str
    source_sha256: str
    samples: int
    succeeded: int
    failed: int
    parts: tuple[PartResult, ...]


class Lease(Record):
    """Who has a part. `renewal` makes each version differ; no clock is written, since no two agree.

    Attributes:
        endpoint: where the part was last sent, so that the next worker asks there first.
    """

    worker: str
    renewal: int = 0
    released: bool = False
    endpoint: str = ""


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
