"""What goes into an engine and what comes out: JSON-able, and free of torch so that the core can import it.

One `EngineJob` is one sample. Jobs that share an inference batch come back as one `EngineResult` each, in the order of
the jobs, whatever happened to the neighbours.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from cosmos3_serve.contract.records import SampleCompute
from cosmos3_serve.errors import SampleCode, SampleError

Weights = Literal["random", "blockworld", "pretrained", "unknown"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EngineJob(_Record):
    """One sample to generate.

    `output_dir` is the sample's own absolute directory below the engine's output root. `args` is a resolved sample
    (framework.md 5.1): every default filled in, inputs as local absolute paths, `seed` an integer.
    """

    request_id: str
    name: str
    output_dir: str
    args: dict[str, Any]

    @property
    def key(self) -> str:
        """The name under which progress and cancellation speak of this sample."""
        return sample_key(self.request_id, self.name)


def sample_key(request_id: str, name: str) -> str:
    return f"{request_id}/{name}"


class WaveRecord(_Record):
    """Who shared what with this sample.

    `coalesced` samples arrived in one `@serve.batch` call; `inference_batch` of them went through the network together,
    this one at `slot` (from 0), step by step; where the diffusers engine finds on a CPU that sharing the products would
    change a bit, one after the other within the step. With `mixed_shapes` the bytes may differ from those of the sample
    alone.
    """

    coalesced_id: str = ""
    coalesced: int = 1
    inference_id: str = ""
    inference_batch: int = 1
    slot: int = 0
    mixed_shapes: bool = False


class EngineError(_Record):
    """Why a sample has no result; `code` is a `SampleCode`."""

    code: SampleCode
    message: str
    retryable: bool

    @classmethod
    def of(cls, error: SampleError) -> Self:
        return cls(
            code=error.sample_code,
            message=error.detail,
            retryable=error.sample_code.retryable,
        )


class EngineResult(_Record):
    """What became of one sample: `outputs` (SampleOutputs of framework.md 7) or `error`, never both, never neither.

    Files in `outputs` are relative to the engine's output root. `phases` holds seconds by phase name; `guardrails` the
    record of which checks ran and what they decided; `compute` what the bytes depend on, None without outputs; `media`
    what was read of the sample's files, by field.
    """

    name: str
    outputs: dict[str, Any] | None = None
    error: EngineError | None = None
    wave: WaveRecord = Field(default_factory=WaveRecord)
    compute: SampleCompute | None = None
    media: dict[str, dict[str, Any]] = Field(default_factory=dict)
    phases: dict[str, float] = Field(default_factory=dict)
    guardrails: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.outputs is None) == (self.error is None):
            raise ValueError("exactly one of outputs and error must be given")
        return self

    @field_validator("outputs")
    @classmethod
    def _relative_files(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        for output in (value or {}).get("outputs", []):
            for file in output.get("files", []):
                path = PurePosixPath(file)
                if path.is_absolute() or ".." in path.parts or not path.parts:
                    raise ValueError("files must be relative to the output root")
        return value


class EngineInfo(_Record):
    """What an engine is and what it runs on; goes into responses, provenance and `/ready`.

    `max_num_seqs` is the batch size in effect, not only the one asked for. `guardrails` is the effective state.
    `capabilities` are the compute capabilities (`9.0`) of the devices that it really uses: empty on a CPU, None where
    the engine does not say.
    """

    engine: str
    revision: str
    backend: str
    checkpoint: str
    checkpoint_revision: str
    checkpoint_digest: str
    weights: Weights
    device: str
    dtype: str
    supported_modes: tuple[str, ...]
    max_num_seqs: int = 1
    capabilities: tuple[str, ...] | None = None
    guardrails: dict[str, Any] = Field(default_factory=dict)
