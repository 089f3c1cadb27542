"""`BatchResponse`: the answer to a batch (source: wire baseline 1.3; additive fields by rulings, generator 1 and 7)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from cosmos3_serve.contract.records import Artifact, JsonObject, SampleRecord, Strict
from cosmos3_serve.contract.wire import BATCH_SCHEMA, SOURCE_REVISION

SourceRevision = Annotated[str, StringConstraints(pattern=SOURCE_REVISION)]
AtLeastOne = Annotated[int, Field(ge=1)]


class EngineRecord(Strict):
    """Which engine ran, at which revision."""

    engine: str
    revision: str


class CheckpointRecord(Strict):
    """Which weights ran: id, revision and digest of the payload, None where unknown."""

    id: str
    revision: str | None = None
    digest: str | None = None


class BatchResponse(Strict):
    """The whole batch. `outputs` holds upstream's SampleOutputs objects as JSON, one per sample in request order;
    fields from `samples` on are ours, and absent in a baseline server's answer."""

    schema_version: Literal["npa.cosmos3.ray-serve.batch.v1"] = BATCH_SCHEMA
    request_id: str
    model: str
    batch_size: AtLeastOne
    outputs: list[JsonObject]
    artifacts: list[Artifact]
    guardrails: bool
    max_batch_size: AtLeastOne
    framework_revision: str
    server_source_revision: SourceRevision
    samples: list[SampleRecord] = Field(default_factory=list)
    backend: str | None = None
    engine: EngineRecord | None = None
    checkpoint: CheckpointRecord | None = None
    weights: Literal["random", "pretrained", "unknown"] | None = None
