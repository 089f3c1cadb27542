"""Batch: one accepted batch as its journal tells it.

A `Batch` changes only by `apply(record)`, whether the record was just written or is read again after a restart, so
that memory and disk cannot tell two stories. The functions at the end make the records.

    accepted ─► [started] ─► sample …  ─► ended ─┬─► (summary; later expired by retention)
                     ▲        cancel, detached   │
                     └────────── reopened ◄──────┘   same body again: the retryable samples run once more
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cosmos3_serve.contract.records import SampleState
from cosmos3_serve.contract.views import BatchState, batch_state
from cosmos3_serve.errors import SampleCode

Record = dict[str, Any]
FORMAT = 1
RESULT_FIELDS = ("code", "message", "wave", "compute", "media", "timings", "guardrails", "outputs", "artifacts")


@dataclass(slots=True)
class Sample:
    """One sample: what was asked (name, seed used) and what became of it.

    `outputs` is the SampleOutputs object that goes into the response, `artifacts` its files (path, bytes, sha256),
    `inputs` what was staged for it (field, uri, bytes, sha256), `media` what was read of that, by field.
    """

    name: str
    seed: int
    state: SampleState = SampleState.QUEUED
    code: str | None = None
    message: str | None = None
    wave: dict[str, Any] | None = None
    compute: dict[str, Any] | None = None
    media: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    guardrails: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, Any] | None = None
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    inputs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def retryable(self) -> bool:
        """Whether the same body may run this sample again."""
        return self.code is not None and SampleCode(self.code).retryable

    def reset(self) -> None:
        self.state, self.code, self.message, self.wave, self.outputs = SampleState.QUEUED, None, None, None, None
        self.compute, self.media, self.timings, self.guardrails = None, {}, {}, {}
        self.artifacts, self.inputs = [], []


@dataclass(slots=True)
class Batch:
    """One batch. Times are seconds since the epoch; `seq` is the number of its last record.

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

    @classmethod
    def replay(cls, records: Sequence[Mapping[str, Any]]) -> Batch:
        """Rebuild a batch. Raises ValueError where the records don't make one."""
        try:
            batch = cls._accepted(records[0])
            for record in records[1:]:
                batch.apply(record)
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"a record doesn't fit ({type(error).__name__})") from None
        return batch

    @classmethod
    def _accepted(cls, record: Mapping[str, Any]) -> Batch:
        if record["kind"] != "accepted" or record["format"] != FORMAT:
            raise ValueError("the first record is not an acceptance of this format")
        return cls(
            request_id=record["request_id"],
            tenant=record["tenant"],
            body_sha256=record["body_sha256"],
            model=record["model"],
            created_at=record["at"],
            engine=record["engine"],
            samples=[Sample(name, seed) for name, seed in record["samples"]],
            detached=record["detached"],
            seq=record.get("seq", 1),
        )

    def apply(self, record: Mapping[str, Any]) -> None:
        match record["kind"]:
            case "sample":
                self._apply_sample(self.samples[record["i"]], record)
            case "staged":
                self._apply_sample(self.samples[record["i"]], record)
                self.samples[record["i"]].inputs = list(record["inputs"])
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
                    self.samples[index].reset()
            case kind:
                raise ValueError(f"unknown record {kind!r}")
        self.seq = record.get("seq", self.seq + 1)

    @staticmethod
    def _apply_sample(sample: Sample, record: Mapping[str, Any]) -> None:
        sample.state = SampleState(record["state"])
        if not sample.state.ended:
            sample.code = sample.message = None
        for name in RESULT_FIELDS:
            if name in record:
                setattr(sample, name, record[name])

    @property
    def state(self) -> BatchState:
        """As its samples say; a batch is not over before its response is written."""
        return BatchState.RUNNING if self.outcome.ended and self.ended_at is None else self.outcome

    @property
    def outcome(self) -> BatchState:
        """What the samples add up to, whether or not the response is written."""
        return batch_state(sample.state for sample in self.samples)

    @property
    def samples_ended(self) -> bool:
        return all(sample.state.ended for sample in self.samples)

    def retryable(self) -> list[int]:
        return [index for index, sample in enumerate(self.samples) if sample.retryable]


@dataclass(frozen=True, slots=True)
class Summary:
    """The little that stays in memory of a batch that ended: enough to list, refuse, retain and forget it.

    `damage` says why its journal can't be trusted; `bytes` is what its files take on disk.
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
        "format": FORMAT,
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
    """A sample changed state; `result` holds any of `RESULT_FIELDS`."""
    return {"kind": "sample", "i": index, "state": state.value, "at": at, **result}


def sample_staged(index: int, inputs: Sequence[Mapping[str, Any]], at: float) -> Record:
    """A sample's inputs are here; it waits for a wave (again)."""
    return {"kind": "staged", "i": index, "state": SampleState.QUEUED.value, "inputs": list(inputs), "at": at}


def sample_failed(index: int, code: SampleCode, message: str, at: float, **result: Any) -> Record:
    """A sample has no result and never will, unless the batch is reopened."""
    state = SampleState.CANCELLED if code is SampleCode.CANCELLED else SampleState.FAILED
    return sample_state(index, state, at, code=code.value, message=message, **result)
