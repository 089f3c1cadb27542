"""What is written down of a generator's run: the workload, one record a sample, one count a cell."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from cosmos3_serve.bench.generator.arrivals import Arrivals
from cosmos3_serve.bench.generator.shapes import Mix

SCHEMA = "cosmos3.bench.generator.v1"
MAX_REQUESTS = 1000
Key = tuple[int, str, str]


class Workload(BaseModel):
    """Every kind of arrivals with every mix of shapes is a cell; all cells are run `repeats` times.

    Args:
        requests: of a cell; each is one batch of `samples` samples by a client of its own.
        fetch: whether a request ends only when its artifacts were downloaded and their hashes compared.
        seed: of the random arrivals and of the first sample; every further sample has the next seed.
        content: `plain` prompts, or captions of block-world `scenes`, which with `fetch` are looked for in what came.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    arrivals: tuple[Arrivals, ...] = Field(min_length=1, max_length=32)
    mixes: tuple[Mix, ...] = Field(min_length=1, max_length=32)
    requests: int = Field(default=32, ge=1, le=MAX_REQUESTS)
    samples: int = Field(default=1, ge=1, le=64)
    repeats: int = Field(default=1, ge=1, le=100)
    fetch: bool = False
    seed: int = Field(default=1, ge=0, le=1_000_000)
    content: Literal["plain", "scenes"] = "plain"

    def keys(self) -> list[Key]:
        return [
            (repeat, arrivals.label, mix.label)
            for repeat in range(self.repeats)
            for mix in self.mixes
            for arrivals in self.arrivals
        ]


class Service(BaseModel):
    """What runs, as `/ready` says before the run. None and `unknown` where a server does not tell."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend: str
    model: str
    revision: str
    source: str
    weights: Literal["random", "blockworld", "pretrained", "unknown"] = "unknown"
    guardrails: bool
    max_batch_size: int
    max_num_seqs: int | None = None
    window_s: float


class Sample(BaseModel):
    """One sample. Times in seconds of one monotonic clock; None is what the server did not tell.

    Args:
        due: when its request should go out; `started` when it went.
        made: fields of the shape as the service resolved them.
        coalesced, inference: how many samples shared the `@serve.batch` call, and the network's call, by their ids.
        timings: phase to seconds.
        files: SHA-256 and bytes of each artifact, as declared.
        fetched: whether every artifact arrived as declared; None: nothing was fetched.
        shown: whether it shows the scene that it was asked for; None: not asked for one, or not judged.
        served_by: revision, source, weights and guardrails of the answer, to set beside those of `/ready`.
    """

    model_config = ConfigDict(extra="forbid")

    repeat: int
    arrivals: str
    mix: str
    request: int
    name: str
    asked: dict[str, Any]
    due: float
    started: float
    ended: float
    error: str | None = None
    state: str | None = None
    made: dict[str, Any] = {}
    coalesced_id: str | None = None
    coalesced: int | None = None
    inference_id: str | None = None
    inference: int | None = None
    mixed_shapes: bool | None = None
    timings: dict[str, float] = {}
    files: list[tuple[str, int]] = []
    fetched: bool | None = None
    shown: bool | None = None
    served_by: dict[str, Any] = {}

    @property
    def key(self) -> Key:
        return self.repeat, self.arrivals, self.mix

    @property
    def latency(self) -> float:
        """From when it was due: a client that could not send in time would hide what it waited."""
        return self.ended - self.due


class Cell(BaseModel):
    """One cell as the service counted it: samples that went through its network meanwhile; None where it has no such
    counter."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    repeat: int
    arrivals: str
    mix: str
    counted: int | None = None

    @property
    def key(self) -> Key:
        return self.repeat, self.arrivals, self.mix


class Run(BaseModel):
    model_config = ConfigDict(extra="forbid")

    schema_version: str = Field(default=SCHEMA, pattern=r"^cosmos3\.bench\.generator\.v1$")
    workload: Workload
    service: Service
    machine: dict[str, str | int | float | list[float]]
    started_at: str
    cells: list[Cell]
    samples: list[Sample]
