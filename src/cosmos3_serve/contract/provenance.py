"""`provenance.json` and the plan it grows from.

The fields of existing clients (docs/contract.md 3), and ours beside them. The file is written last: its presence means
that the publication is complete, and its status says complete of what.
"""

from __future__ import annotations

import json
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cosmos3_serve.contract.batch import CheckpointRecord, EngineRecord
from cosmos3_serve.contract.records import Artifact, JsonObject, SampleRecord
from cosmos3_serve.contract.recovery import Recovery
from cosmos3_serve.contract.wire import FRAMEWORK_BACKEND, PROVENANCE_SCHEMA

THROUGHPUT_NOTE = (
    "queue, staging, inference, encode and hash are measured by the server per sample; submit_to_end, delivery and"
    " publication are measured by the client. Initialization and cache verification happen before readiness and are in"
    " none of them unless named here; a throughput taken from submit_to_end includes queueing and artifact hashing, and"
    " includes artifact delivery only if delivery is added."
)


class Plan(BaseModel):
    """What a submission is about to do; exactly the baseline's dry-run answer."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    schema_version: Literal["npa.cosmos3.ray-serve.provenance.v1"] = PROVENANCE_SCHEMA
    status: Literal["planned", "submitting"] = "planned"
    run_id: str = ""
    endpoint: str
    input_path: str
    output_path: str
    model: str
    sample_names: list[str]
    batch_size: int = Field(ge=1)
    backend: str = FRAMEWORK_BACKEND
    weights_baked: Literal[False] = False


class MediaProof(BaseModel):
    """What decoding one media file once showed: pixels, and frames where it has any."""

    model_config = ConfigDict(extra="forbid")

    path: str
    kind: Literal["image", "video", "text"]
    width: int | None = None
    height: int | None = None
    frames: int | None = None


class Provenance(BaseModel):
    """The record of one publication. `completed` means every sample; `partial` names what is missing in `samples`;
    `recovered` was derived from retained native outputs, and `recovery` says from which.

    What only a response says (backend, guardrails, revisions) is None in a recovered publication without one.

    Attributes:
        structured_outputs: the response's `outputs`, unchanged.
        seeds: seed used per sample, given or drawn.
        samples: per-sample state, code, guardrail record, timings and wave, when the server sent them.
        missing: names of samples without a published result (partial and recovered only).
        phases: client-side phase name to seconds; `throughput_note` says what each includes.
        request_sha256, response_sha256: of the published request.json and response.json bytes.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    # the baseline's
    schema_version: Literal["npa.cosmos3.ray-serve.provenance.v1"] = PROVENANCE_SCHEMA
    status: Literal["completed", "partial", "recovered"]
    run_id: str = ""
    endpoint: str
    input_path: str
    output_path: str
    model: str
    sample_names: list[str]
    batch_size: int = Field(ge=1)
    backend: str | None
    weights_baked: Literal[False] = False
    request_id: str
    guardrails: bool | None
    max_batch_size: int | None
    framework_revision: str | None
    server_source_revision: str | None
    artifacts: list[Artifact]
    structured_outputs: list[JsonObject]
    runtime_image: str = ""
    published_uri: str
    provenance_uri: str
    # ours
    engine: EngineRecord | None = None
    checkpoint: CheckpointRecord | None = None
    weights: Literal["random", "blockworld", "pretrained", "unknown"] = "unknown"
    seeds: dict[str, int | None] = Field(default_factory=dict)
    samples: list[SampleRecord] = Field(default_factory=list)
    missing: list[str] = Field(default_factory=list)
    phases: dict[str, float] = Field(default_factory=dict)
    throughput_note: str = THROUGHPUT_NOTE
    media: list[MediaProof] = Field(default_factory=list)
    request_sha256: str = ""
    response_sha256: str = ""
    client_version: str = ""
    recovery: Recovery | None = None

    @model_validator(mode="after")
    def _known(self) -> Self:
        if (self.status == "recovered") != (self.recovery is not None):
            raise ValueError("a recovered publication, and no other, says what it was derived from")
        said = (self.backend, self.guardrails, self.max_batch_size, self.framework_revision)
        if None in (*said, self.server_source_revision) and self.status != "recovered":
            raise ValueError("only a recovered publication may lack what the response says")
        return self

    def to_bytes(self) -> bytes:
        """The file's bytes: indent 2, sorted keys, final newline (docs/contract.md 3)."""
        record = self.model_dump(mode="json", exclude=None if self.recovery else {"recovery"})
        text = json.dumps(record, indent=2, sort_keys=True, allow_nan=False)
        return (text + "\n").encode()
