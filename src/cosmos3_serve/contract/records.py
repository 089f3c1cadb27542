"""Records about one sample of an accepted batch: what came out, why not, in which company, how long it took.

`Artifact`, `SampleOutput` and `SampleOutputs` are upstream's and the baseline's shapes, kept exactly (docs/contract.md
2.4). `SampleRecord` is ours and travels beside them in `samples[]`. All of them are strict: `True` is not an int and
`"1"` is not a number.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, field_validator

from cosmos3_serve.contract.jsontext import check_json
from cosmos3_serve.contract.wire import SHA256_HEX

Sha256 = Annotated[str, StringConstraints(pattern=SHA256_HEX)]
Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]


MAX_DEPTH = 64
MAX_NODES = 20_000_000  # one full batch's action lists fit


def _clean_json(value: dict[str, Any]) -> dict[str, Any]:
    check_json(value, max_depth=MAX_DEPTH, max_nodes=MAX_NODES)
    return value


# Free-form content. Checked, since pydantic would write a NaN as null without a word.
JsonObject = Annotated[dict[str, Any], AfterValidator(_clean_json)]


class Strict(BaseModel):
    """Base of what a server says: strict types, unknown keys dropped so that a newer server stays readable."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class SampleState(StrEnum):
    QUEUED = "queued"
    STAGING = "staging"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in (SampleState.SUCCEEDED, SampleState.FAILED, SampleState.CANCELLED)


# Enum members arrive as JSON strings; strictness elsewhere must not refuse them.
LaxState = Annotated[SampleState, Field(strict=False)]


class Artifact(Strict):
    """One file of the batch: path relative to the output root, size in bytes (never 0), hash of the content."""

    sample: str
    path: str
    bytes: Annotated[int, Field(ge=1)]
    sha256: Sha256

    @field_validator("path")
    @classmethod
    def _relative(cls, path: str) -> str:
        if path.startswith("/") or ".." in path.split("/"):
            raise ValueError("artifact path should be relative and stay below the output root")
        return path


class SampleOutput(BaseModel):
    """One output: structured content (`action`, `reasoner_text`) and its files, relative to the output root."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    content: JsonObject = Field(default_factory=dict)
    files: list[str] = Field(default_factory=list)


class SampleOutputs(BaseModel):
    """Upstream's result of one sample; `args` carries at least `name`, `message` a short reason on error or skip."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    args: JsonObject
    status: Literal["success", "error", "skip"] = "success"
    message: str | None = None
    stack_trace: str | None = None
    outputs: list[SampleOutput] = Field(default_factory=list)

    @field_validator("args")
    @classmethod
    def _named(cls, args: dict[str, Any]) -> dict[str, Any]:
        if "name" not in args:
            raise ValueError("args should carry a name")
        return args


class SampleWave(Strict):
    """In which company a sample ran. Neighbours are samples of the own batch only.

    Attributes:
        coalesced_id, coalesced: the `@serve.batch` event and how many samples it held.
        inference_id, inference_batch, slot: the inference call, its batch size, and this sample's place in it from 0.
        mixed_shapes: whether the call mixed sizes or frame counts (then bytes may differ from a run alone).
    """

    coalesced_id: str = ""
    coalesced: Count = 0
    inference_id: str = ""
    inference_batch: Count = 0
    slot: Count = 0
    mixed_shapes: bool = False
    neighbours: list[str] = Field(default_factory=list)


class SampleCompute(Strict):
    """What computed a sample. On a CPU the same arguments under an equal record give the same bytes.

    What an engine does not know is None or absent.

    Attributes:
        device: `cpu`, or the name of the GPU.
        dtype: of the weights, such as `float32`; with that of the file where it differs: `bfloat16 from float8_e4m3fn`.
        threads: threads that torch computed with, read in the thread that ran the sample.
        cpu: the processor: architecture, maker, family, model and stepping, and its name.
        cpu_capability: the vector instructions that torch's own kernels use, such as `AVX2` or `AVX512`.
        libraries: version by package, of those that compute, decode or encode.
        environment: value by name, of the variables that choose kernels or limit threads and are set.
    """

    device: str = ""
    dtype: str = ""
    threads: Annotated[int, Field(ge=1)] | None = None
    cpu: str | None = None
    cpu_capability: str | None = None
    libraries: dict[str, str] = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)


class SampleRecord(Strict):
    """Outcome of one sample in `samples[]`.

    Attributes:
        code: a `SampleCode` value when the state is failed or cancelled, else None.
        guardrails: checks that ran and what they decided; `applied` separate from `configured`, and
            `texts_applied` and `outputs_applied` from each other.
        timings: phase name to seconds (queue, staging, inference, encode, hash).
        seed: the seed that was used, given or drawn.
        compute: what its bytes depend on beside its arguments; None where it has no result.
        media: what was read of its pictures and clips, by field (docs/media.md); empty where the engine does not say.
    """

    name: str
    state: LaxState
    code: str | None = None
    message: str | None = None
    retryable: bool = False
    seed: int | None = None
    guardrails: dict[str, Any] = Field(default_factory=dict)
    timings: dict[str, Seconds] = Field(default_factory=dict)
    wave: SampleWave | None = None
    compute: SampleCompute | None = None
    media: dict[str, JsonObject] = Field(default_factory=dict)
