"""Settings of the generator service (`cosmos3 ray-serve`)."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Literal

from pydantic import ByteSize, field_validator

from cosmos3_serve.settings.base import FALSE_WORDS, MIB, TRUE_WORDS, Engine, Port, Repeated, Settings, option


class GeneratorSettings(Settings):
    """What an operator may set on `cosmos3 ray-serve`."""

    # names and meanings that existing deployments use
    host: str = option("0.0.0.0", "Address of the public port.", env="NPA_COSMOS3_RAY_HOST")
    port: Port = option(8000, "Public port; 0 picks a free one.", env="NPA_COSMOS3_RAY_PORT", ge=0, le=65535)
    model: str = option("Cosmos3-Nano", "Name of the served model.", env="NPA_COSMOS3_RAY_MODEL", min_length=1)
    checkpoint: str = option(
        "Cosmos3-Nano",
        "Checkpoint: a local directory, a Hub id, `blockworld` (small, trained) or `tiny` (random weights, for tests"
        " and trials).",
        env="NPA_COSMOS3_RAY_CHECKPOINT",
        min_length=1,
    )
    output_path: Path = option(
        Path("/outputs"),
        "Output root; a shared filesystem when there are several nodes.",
        env="NPA_COSMOS3_RAY_OUTPUT_DIR",
    )
    world_size: int = option(1, "GPUs per replica.", env="NPA_COSMOS3_RAY_WORLD_SIZE", ge=1)
    max_batch_size: int = option(
        4, "Requests coalesced into one batch by @serve.batch.", env="NPA_COSMOS3_RAY_MAX_BATCH_SIZE", ge=1, le=256
    )
    batch_wait_timeout_s: float = option(
        0.05,
        "Seconds that @serve.batch waits for a batch to fill.",
        env="NPA_COSMOS3_RAY_BATCH_WAIT_TIMEOUT_S",
        ge=0,
        le=60,
    )
    parallelism_preset: Literal["throughput", "latency"] = option(
        "throughput", "Placement preset of the framework engine.", env="NPA_COSMOS3_RAY_PARALLELISM_PRESET"
    )
    guardrails: bool = option(
        True, "Check prompts and media; off only by explicit choice.", env="NPA_COSMOS3_RAY_GUARDRAILS"
    )
    guardrail_revision: str | None = option(
        None, "Commit (40 hex) of nvidia/Cosmos-1.0-Guardrail; the diffusers engine needs it while guardrails are on.",
        env="COSMOS3_GUARDRAIL_REVISION",
    )  # fmt: skip
    guardrail_controversial: Literal["block", "pass"] = option(
        "block",
        "What becomes of a text that the classifier calls controversial.",
        env="COSMOS3_GUARDRAIL_CONTROVERSIAL",
    )
    guardrail_timeout_s: float = option(
        120.0, "Seconds that the text check of one sample may take; then the sample fails.",
        env="COSMOS3_GUARDRAIL_TIMEOUT_S", gt=0, le=3600,
    )  # fmt: skip
    allowed_s3_roots: str = option(
        "", "Comma list of s3://bucket[/prefix] that inputs may come from; empty refuses every media input.",
        env="NPA_COSMOS3_RAY_ALLOWED_S3_ROOTS",
    )  # fmt: skip
    # ours
    defaults_file: Path | None = option(
        None, "JSON {mode: {field: value}} in place of the framework's defaults; announced to clients.",
        env="COSMOS3_DEFAULTS_FILE",
    )  # fmt: skip
    engine: Engine | None = option(
        None, "Inference engine; default: framework where its interpreter is found.", env="COSMOS3_ENGINE"
    )
    max_num_seqs: int | None = option(
        None, "Samples per inference call; default: --max-batch-size.", env="COSMOS3_MAX_NUM_SEQS", ge=1, le=256
    )
    queue_limit: int = option(4096, "Samples that may wait; past it 429.", env="COSMOS3_QUEUE_LIMIT", ge=1)
    max_samples: int = option(1024, "Samples in one batch.", env="COSMOS3_MAX_SAMPLES", ge=1)
    max_body_bytes: ByteSize = option(8 * MIB, "Request body, bytes.", env="COSMOS3_MAX_BODY_BYTES", ge=1024)
    max_input_bytes: ByteSize = option(512 * MIB, "One conditioning input, bytes.", env="COSMOS3_MAX_INPUT_BYTES", ge=1)
    input_timeout_s: float = option(
        120.0, "Seconds to fetch one conditioning input.", env="COSMOS3_INPUT_TIMEOUT_S", gt=0
    )
    retention_hours: float = option(
        168.0, "Age at which an ended batch is removed.", env="COSMOS3_RETENTION_HOURS", gt=0
    )
    retention_bytes: ByteSize = option(
        200 * 1024 * MIB, "Bytes of ended batches kept; the oldest go first.", env="COSMOS3_RETENTION_BYTES", ge=0
    )
    stall_timeout_s: float = option(
        600.0, "Seconds without progress after which a replica is replaced.", env="COSMOS3_STALL_TIMEOUT_S", gt=0
    )
    drain_timeout_s: float = option(
        60.0, "Seconds that running samples get to finish on shutdown.", env="COSMOS3_DRAIN_TIMEOUT_S", ge=0
    )
    framework_args: Repeated = option(
        (), "One more field of the framework's setup, such as use_cuda_graphs=true.",
        env="COSMOS3_FRAMEWORK_ARGS", flag="--framework-arg")  # fmt: skip
    ray_address: str | None = option(None, "Join this Ray cluster instead of owning one.", env="COSMOS3_RAY_ADDRESS")
    cache_dir: Path | None = option(
        None, "Where generated and fetched files are cached; default: the user's cache folder.", env="COSMOS3_CACHE_DIR"
    )
    device: Literal["auto", "cpu", "cuda"] = option("auto", "Device of the diffusers engine.", env="COSMOS3_DEVICE")
    force_unsupported_gpu: bool = option(
        False, "Start on a GPU that is no target of this service; recorded as forced.",
        env="COSMOS3_FORCE_UNSUPPORTED_GPU",
    )  # fmt: skip
    log_level: Literal["debug", "info", "warning", "error"] = option("info", "Log level.", env="COSMOS3_LOG_LEVEL")

    @field_validator("guardrails", "force_unsupported_gpu", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        """A fixed word list, so that a typo never silently turns guardrails off or a refusal away."""
        if isinstance(value, str):
            word = value.strip().lower()
            if word in TRUE_WORDS or word in FALSE_WORDS:
                return word in TRUE_WORDS
            raise ValueError(f"{value!r} is none of 1/true/yes/on, 0/false/no/off")
        return value

    @field_validator("framework_args", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return tuple(shlex.split(value)) if isinstance(value, str) else value

    @property
    def inference_batch_limit(self) -> int:
        """Samples per inference call: `--max-num-seqs`, else `--max-batch-size`."""
        return self.max_num_seqs or self.max_batch_size
