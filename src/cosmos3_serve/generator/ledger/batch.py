"""Batch: one accepted batch in memory, and the records that change it.

A `Batch` changes only by `apply(record)`, after the record is on disk, so that memory and disk cannot tell two stories.
What a sample came to (outputs, timings, …) stays on disk: see `SampleDetail`. The functions at the end make records.

    accepted ─► [started] ─► sample …  ─► ended ─┬─► (later expired by retention)
                     ▲        cancel, detached   │
                     └────────── reopened ◄──────┘   same body again: the retryable samples run once more
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cosmos3_serve.contract.records import SampleState
from cosmos3_serve.contract.views import BatchState, batch_state
from cosmos3_serve.errors import SampleCode

Record = dict[str, Any]
ABOUT_FIELDS = ("message", "wave", "compute", "media", "timings", "guardrails")
RESULT_FIELDS = ("outputs", "artifacts", "inputs")


@dataclass(slots=True)
class Sample:
    """One sample: what was asked (name, seed used) and how far it is."""

    name: str
    seed: int
    state: SampleState = SampleState.QUEUED
    code: str | None = None

    @property
    def retryable(self) -> bool:
        """Whether the same body may run this sample again."""
        return self.code is not None and SampleCode(self.code).retryable


@dataclass(slots=True)
class SampleDetail(Sample):
    """A sample with what became of it, as it is on disk.

    `outputs` is the SampleOutputs object that goes into the response, `artifacts` its files (path, bytes, sha256),
    `inputs` what was staged for it (field, uri, bytes, sha256), `media` what was read of that, by field.
    """

    message: str | None = None
    wave: dict[str, Any] | None = None
    compute: dict[str, Any] | None = None
    media: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    guardrails: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, Any] | None = None
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    inputs: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class Batch:
    """One batch. Times are seconds since the epoch; `seq` is the number of its last change.

    Attributes:
        detached: submitted asynchronously at least once, so it ends only by itself or by DELETE.
        engine: what it runs on (`EngineInfo` fields); a rerun needs the same.
    """

    request_id: str
    tenant: str
    body_sha256: str
    model: str
    created_at: float
    engine: dict[str, Any]
    samples: list[Sample]
    detached: bool = False
    started_at: float | None = None
    cancelled_at: float | None = None
    ended_at: float | None = None
    seq: int = 0
    counts: Counter[SampleState] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.counts = Counter(sample.state for sample in self.samples)

    @classmethod
    def of(cls, accepted: Mapping[str, Any]) -> Batch:
        """The batch that an acceptance makes."""
        return cls(
            request_id=accepted["request_id"],
            tenant=accepted["tenant"],
            body_sha256=accepted["body_sha256"],
            model=accepted["model"],
            created_at=accepted["at"],
            engine=accepted["engine"],
            samples=[Sample(name, seed) for name, seed in accepted["samples"]],
            detached=accepted["detached"],
            seq=1,
        )

    def apply(self, record: Mapping[str, Any]) -> None:
        match record["kind"]:
            case "sample" | "staged":
                self._set(self.samples[record["i"]], SampleState(record["state"]), record.get("code"))
            case "started":
                self.started_at = record["at"]
            case "detached":
                self.detached = True
            case "cancel":
                self.cancelled_at = record["at"]
            case "ended":
                self.ended_at = record["at"]
            case "reopened":
                self.ended_at = self.cancelled_at = None
                for index in record["samples"]:
                    self._set(self.samples[index], SampleState.QUEUED, None)
            case kind:
                raise ValueError(f"unknown record {kind!r}")
        self.seq += 1

    def _set(self, sample: Sample, state: SampleState, code: str | None) -> None:
        self.counts[sample.state] -= 1
        self.counts[state] += 1
        sample.state, sample.code = state, code

    @property
    def state(self) -> BatchState:
        """As its samples say; a batch is not over before its response is written."""
        return BatchState.RUNNING if self.outcome.ended and self.ended_at is None else self.outcome

    @property
    def outcome(self) -> BatchState:
        """What the samples add up to, whether or not the response is written."""
        return batch_state(state for state, count in self.counts.items() if count)

    @property
    def samples_ended(self) -> bool:
        return all(state.ended for state, count in self.counts.items() if count)

    def retryable(self) -> list[int]:
        return [index for index, sample in enumerate(self.samples) if sample.retryable]


@dataclass(frozen=True, slots=True)
class Summary:
    """The little that stays in memory of a batch that ended: enough to list, refuse, retain and forget it.

    Attributes:
        bytes: what its files take on disk.
        age_at: reading of the ledger's own clock at its end, seconds; retention counts from there.
        damage: why its rows can't be trusted.
    """

    request_id: str
    tenant: str | None
    body_sha256: str
    state: BatchState
    created_at: float
    ended_at: float
    bytes: int = 0
    expired_at: float | None = None
    damage: str | None = None
    age_at: float = 0.0


def summarize(batch: Batch, size: int, age_at: float = 0.0) -> Summary:
    return Summary(
        request_id=batch.request_id,
        tenant=batch.tenant,
        body_sha256=batch.body_sha256,
        state=batch.state,
        created_at=batch.created_at,
        ended_at=batch.ended_at or batch.created_at,
        bytes=size,
        age_at=age_at,
    )


def accepted(
    request_id: str,
    *,
    tenant: str,
    body_sha256: str,
    model: str,
    samples: Sequence[tuple[str, int]],
    engine: Mapping[str, Any],
    detached: bool,
    at: float,
) -> Record:
    """The first record: `samples` are (name, seed used) in request order."""
    return {
        "kind": "accepted",
        "request_id": request_id,
        "tenant": tenant,
        "body_sha256": body_sha256,
        "model": model,
        "samples": [list(sample) for sample in samples],
        "engine": dict(engine),
        "detached": detached,
        "at": at,
    }


def sample_state(index: int, state: SampleState, at: float, **result: Any) -> Record:
    """A sample changed state; `result` holds any of `ABOUT_FIELDS` and `RESULT_FIELDS`."""
    return {"kind": "sample", "i": index, "state": state.value, "at": at, **result}


def sample_staged(index: int, inputs: Sequence[Mapping[str, Any]], at: float) -> Record:
    """A sample's inputs are here; it waits for a wave (again)."""
    return {"kind": "staged", "i": index, "state": SampleState.QUEUED.value, "inputs": list(inputs), "at": at}


def sample_failed(index: int, code: SampleCode, message: str, at: float, **result: Any) -> Record:
    """A sample has no result and never will, unless the batch is reopened."""
    state = SampleState.CANCELLED if code is SampleCode.CANCELLED else SampleState.FAILED
    return sample_state(index, state, at, code=code.value, message=message, **result)
