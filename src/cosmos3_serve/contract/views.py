"""Bodies of `GET /ready` and `GET /v1/batches…`, and progress events. Times are UTC, ISO 8601."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field

from cosmos3_serve.contract.records import JsonObject, SampleCompute, SampleState, SampleWave


class BatchState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # ended long ago: its artifacts were removed by retention

    @property
    def ended(self) -> bool:
        return self not in (BatchState.QUEUED, BatchState.RUNNING)


def batch_state(samples: Iterable[SampleState]) -> BatchState:
    """State of a batch from those of its samples: succeeded iff all succeeded, cancelled iff all were cancelled,
    failed once it ended any other way; queued until the first sample leaves the queue."""
    states = set(samples)
    if not all(state.ended for state in states):
        return BatchState.QUEUED if states == {SampleState.QUEUED} else BatchState.RUNNING
    if states == {SampleState.SUCCEEDED}:
        return BatchState.SUCCEEDED
    return BatchState.CANCELLED if states == {SampleState.CANCELLED} else BatchState.FAILED


class View(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class SampleView(View):
    """One sample now. `step` of `total_steps` while it denoises, where the engine tells.

    `finishing` marks a sample that was cancelled while running on an engine that cannot stop it.
    """

    name: str
    state: SampleState
    code: str | None = None
    message: str | None = None
    retryable: bool = False
    finishing: bool = False
    seed: int | None = None
    step: int | None = None
    total_steps: int | None = None
    guardrails: dict[str, Any] = Field(default_factory=dict)
    timings: dict[str, float] = Field(default_factory=dict)
    wave: SampleWave | None = None
    compute: SampleCompute | None = None
    media: dict[str, JsonObject] = Field(default_factory=dict)


class BatchView(View):
    """One batch now.

    Attributes:
        partial: it ended and some but not all of its samples succeeded.
        links: relative URLs: `self`, `events`, and `response` once it ended.
    """

    request_id: str
    state: BatchState
    model: str
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    samples: list[SampleView] = Field(default_factory=list)
    links: dict[str, str] = Field(default_factory=dict)
    partial: bool = False


class BatchEvent(View):
    """One server-sent event; `id` grows by one within a batch, so a client can resume after the last it saw.

    `state` is a BatchState on `batch` events and a SampleState on `sample` events; `progress` events carry steps and
    may be skipped for a slow reader; `end` closes the stream.
    """

    id: int
    type: Literal["batch", "sample", "progress", "end"]
    sample: str | None = None
    state: str | None = None
    code: str | None = None
    step: int | None = None
    total_steps: int | None = None
    at: datetime


class Check(BaseModel):
    """One check with its reason; `reason` says what was seen when it holds and what to do when it does not."""

    model_config = ConfigDict(extra="ignore")

    name: str
    ok: bool
    reason: str = ""


class AssetRow(BaseModel):
    """What a service fetched from the Hub beside its checkpoint. Every byte was checked against the Hub's hashes.

    `digest` is the SHA-256 over path, size and hash of its files.
    """

    repo: str
    revision: str
    purpose: str
    digest: str


class BatchLimits(BaseModel):
    """What one POST of a batch may hold: bytes of its body, and samples."""

    model_config = ConfigDict(extra="ignore")

    body_bytes: int
    samples: int


class ReadyReport(BaseModel):
    """Baseline fields first; `status` is `ready` exactly when there are checks and all hold.

    `guardrails` is the configured flag, as in the baseline; `guardrails_effective` says whether the checkers are
    loaded. `target` and `target_status` name the hardware and what may be claimed of it (see `contract.targets`), empty
    until the engine has answered; the framework revision alone binds defaults only where `custom_defaults` is false.
    `payload_verified` says whether every byte of the checkpoint was checked against the Hub's hashes (a local directory
    has none to check against); None where the service does not say.
    """

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    backend: str
    model: str
    guardrails: bool
    world_size: int
    max_batch_size: int
    model_max_ongoing_requests: int
    batch_wait_timeout_s: float
    framework_revision: str
    server_source_revision: str
    weights_baked: Literal[False] = False
    engine: str = ""
    checkpoint: str = ""
    checkpoint_revision: str | None = None
    checkpoint_digest: str | None = None
    weights: Literal["random", "blockworld", "pretrained", "unknown"] = "unknown"
    payload_verified: bool | None = None
    assets: list[AssetRow] = Field(default_factory=list)
    guardrails_effective: bool = False
    max_num_seqs: int | None = None
    queue_depth: int | None = None
    target: str = ""
    target_status: str = ""
    target_forced: bool = False
    custom_defaults: bool = False
    defaults_sha256: str | None = None
    limits: BatchLimits | None = None
    checks: list[Check] = Field(default_factory=list)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def status(self) -> Literal["ready", "not_ready"]:
        return "ready" if self.checks and not self.failing else "not_ready"

    @property
    def failing(self) -> list[Check]:
        return [check for check in self.checks if not check.ok]
