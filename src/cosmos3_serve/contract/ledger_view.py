"""What `GET /v1/batches…` shows of the ledger: states, samples, progress events. Times are UTC, ISO 8601."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from cosmos3_serve.contract.records import SampleState, SampleWave

__all__ = ["BatchEvent", "BatchState", "BatchView", "SampleState", "SampleView", "batch_state"]


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
