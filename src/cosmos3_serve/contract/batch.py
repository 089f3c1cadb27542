"""A batch on the wire: `BatchRequest`, what a client asks, and `BatchResponse`, the answer."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from cosmos3_serve.contract.jsontext import canonical_json
from cosmos3_serve.contract.records import Artifact, JsonObject, SampleRecord, Strict
from cosmos3_serve.contract.wire import BATCH_SCHEMA, MODEL_NAME, SOURCE_REVISION


class BatchRequest(BaseModel):
    """A batch as validated by `parse_batch` or `prepare_request`; construct it through them.

    Samples stay the client's own objects (names stripped), so that what was asked is what is recorded. An empty
    `request_id` means that the server draws one.

    Attributes:
        uploads: files that came with the request, content by safe name; samples name them `upload://NAME`. No client
            of `POST /v1/batches` can send any.
    """

    model_config = ConfigDict(extra="ignore")

    samples: list[dict[str, Any]]
    model: str = MODEL_NAME
    request_id: str = ""
    uploads: dict[str, bytes] = Field(default_factory=dict, exclude=True, repr=False)

    @property
    def names(self) -> list[str]:
        return [sample["name"] for sample in self.samples]

    def body(self) -> dict[str, Any]:
        """The POST body, exactly the baseline's three keys."""
        return {"samples": self.samples, "model": self.model, "request_id": self.request_id}


def body_sha256(request: BatchRequest) -> str:
    """What makes two submissions the same batch: the hash of the canonical JSON of model and samples.

    The request id is left out; it is the key under which this hash is compared.
    """
    content = {"model": request.model, "samples": request.samples}
    return hashlib.sha256(canonical_json(content)).hexdigest()


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
    weights: Literal["random", "blockworld", "pretrained", "unknown"] | None = None
