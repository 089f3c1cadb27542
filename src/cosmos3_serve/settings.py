"""Settings: one frozen model per service, the single source for flags, environment variables and documentation.

A value is taken from the flag, else from the environment, else from the default here; a flag that was not given never
overwrites an environment value. `option()` binds a field to both names, `load()` applies the rule, and the CLI and the
settings table of the documentation are generated from the same fields.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ByteSize, ConfigDict, Field, ValidationError, field_validator

from cosmos3_serve.errors import FieldError, UsageError

TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"0", "false", "no", "off"})

TOKEN_ENV = "NPA_COSMOS3_RAY_TOKEN"
TOKEN_FILE_ENV = "NPA_COSMOS3_RAY_TOKEN_FILE"
REASONER_TOKEN_ENV = "COSMOS3_REASONER_TOKEN"
REASONER_TOKEN_FILE_ENV = "COSMOS3_REASONER_TOKEN_FILE"
MIB = 1024 * 1024


def option(default: Any, help: str, *, env: str | None = None, flag: str | None = None, **bounds: Any) -> Any:
    """A settings field with its environment variable (`env`), its flag (default: from the name) and its help."""
    return Field(default, description=help, json_schema_extra={"env": env, "flag": flag}, **bounds)


class Settings(BaseModel):
    """Base of the settings models: frozen, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def env_name(cls, field: str) -> str | None:
        extra = cls.model_fields[field].json_schema_extra
        return extra.get("env") if isinstance(extra, dict) else None  # type: ignore[return-value]

    @classmethod
    def flag_name(cls, field: str) -> str:
        extra = cls.model_fields[field].json_schema_extra
        flag = extra.get("flag") if isinstance(extra, dict) else None
        return str(flag) if flag else "--" + field.replace("_", "-")

    @classmethod
    def load(cls, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Self:
        """Merge flags (None = not given) over the environment over the defaults.

        Raises:
            UsageError: a value does not fit; `errors` names the flag or variable that carried it.
        """
        environ = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        origin: dict[str, str] = {}
        for name in cls.model_fields:
            env = cls.env_name(name)
            if env and environ.get(env, "").strip():
                values[name], origin[name] = environ[env].strip(), env
            if flags and flags.get(name) is not None:
                values[name], origin[name] = flags[name], cls.flag_name(name)
        try:
            return cls(**values)
        except ValidationError as error:
            found = [
                FieldError(
                    origin.get(str(e["loc"][0]), str(e["loc"][0])) if e["loc"] else "settings",
                    e["msg"].removeprefix("Value error, "),
                )
                for e in error.errors()
            ]
            names = ", ".join(e.field for e in found)
            remedy = "see the allowed values: the same command with --help"
            raise UsageError(f"invalid settings: {names}", remedy=remedy, errors=found) from None


def _unprivileged(value: int) -> int:
    if 0 < value < 1024:
        raise ValueError("must be 0 or at least 1024")
    return value


Port = Annotated[int, AfterValidator(_unprivileged)]
Engine = Literal["framework", "diffusers"]
Repeated = tuple[str, ...]  # a flag that may be given several times


class GeneratorSettings(Settings):
    """What an operator may set on `cosmos3 ray-serve`."""

    # names and meanings that existing deployments use
    host: str = option("0.0.0.0", "Address of the public port.", env="NPA_COSMOS3_RAY_HOST")
    port: Port = option(8000, "Public port; 0 picks a free one.", env="NPA_COSMOS3_RAY_PORT", ge=0, le=65535)
    model: str = option("Cosmos3-Nano", "Name of the served model.", env="NPA_COSMOS3_RAY_MODEL", min_length=1)
    checkpoint: str = option(
        "Cosmos3-Nano",
        "Checkpoint: a local directory, a Hub id, or `tiny` (random weights, for tests and trials).",
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


class ClientSettings(Settings):
    """What a user may set on `cosmos3 ray-batch` besides the batch itself."""

    endpoint: str = option("", "Address of the service, http(s)://host:port.", env="NPA_COSMOS3_RAY_ENDPOINT")
    token_env: str = option(TOKEN_ENV, "Name of the variable that holds the bearer token.", min_length=1)
    expected_revision: str | None = option(
        None, "Framework revision that the service must report; default: the pinned framework commit.",
        env="COSMOS3_EXPECTED_REVISION", min_length=1,
    )  # fmt: skip
    timeout: float = option(1800.0, "Seconds for the whole submission, one deadline.", ge=1, le=7 * 24 * 3600)
    concurrency: int = option(4, "Downloads at once.", env="COSMOS3_CLIENT_CONCURRENCY", ge=1, le=64)
    spool_bytes: ByteSize = option(
        16 * 1024 * MIB, "Most bytes of artifacts on the local disk at once.", env="COSMOS3_CLIENT_SPOOL_BYTES", ge=MIB
    )
    journal_dir: Path | None = option(
        None, "Where unfinished runs are kept; default: the user's state folder.", env="COSMOS3_CLIENT_JOURNAL_DIR"
    )


class ReasonerSettings(Settings):
    """What an operator may set on `cosmos3 reasoner serve`."""

    host: str = option("0.0.0.0", "Address of the public port.", env="COSMOS3_REASONER_HOST")
    port: Port = option(8000, "Public port; 0 picks a free one.", env="COSMOS3_REASONER_PORT", ge=0, le=65535)
    model: str = option(
        "Cosmos3-Nano",
        "Checkpoint: a local directory, a Hub id, or `tiny` (random weights, for tests and trials).",
        env="COSMOS3_REASONER_MODEL",
        min_length=1,
    )
    workers: int = option(
        1, "Replicas, each with its own caches; one GPU each where there are GPUs.", env="COSMOS3_REASONER_WORKERS",
        ge=1, le=1024,
    )  # fmt: skip
    gateways: int = option(1, "Gateway processes on the public port.", env="COSMOS3_REASONER_GATEWAYS", ge=1, le=64)
    routing: Literal["round-robin", "session-affinity"] = option(
        "session-affinity", "Whether questions of one session share a replica.", env="COSMOS3_REASONER_ROUTING"
    )
    session_mode: Literal["soft", "hard"] = option(
        "soft", "Full or lost home: spill and move (soft), or 503 until it serves (hard).",
        env="COSMOS3_REASONER_SESSION_MODE",
    )  # fmt: skip
    session_ttl_s: float = option(
        300.0, "Idle seconds after which a session is forgotten.", env="COSMOS3_REASONER_SESSION_TTL_S", ge=4
    )
    session_headers: Repeated = option(
        ("X-Dynamo-Session-ID", "X-Session-ID"),
        "Header that names the session, the first present wins.",
        env="COSMOS3_REASONER_SESSION_HEADERS",
        flag="--session-header",
    )
    precision: Literal["auto", "fp8", "bf16", "fp32"] = option(
        "auto", "Weights and arithmetic; auto: fp8 or bf16 by GPU, fp32 on CPU.", env="COSMOS3_REASONER_PRECISION"
    )
    max_num_seqs: int | None = option(
        None, "Questions that one replica answers at once; default: 64 on GPU, 8 on CPU.",
        env="COSMOS3_REASONER_MAX_NUM_SEQS", ge=1, le=1024,
    )  # fmt: skip
    max_model_len: int | None = option(
        None, "Tokens of one question and its answer; default: 32768 on GPU, 16384 on CPU.",
        env="COSMOS3_REASONER_MAX_MODEL_LEN", ge=1024,
    )  # fmt: skip
    max_body_bytes: ByteSize = option(64 * MIB, "Request body, bytes.", env="COSMOS3_REASONER_MAX_BODY_BYTES", ge=1024)
    max_media_bytes: ByteSize = option(
        512 * MIB, "One video or image, bytes.", env="COSMOS3_REASONER_MAX_MEDIA_BYTES", ge=1024
    )
    videos_per_message: int = option(1, "Videos in one message.", env="COSMOS3_REASONER_VIDEOS", ge=0, le=16)
    images_per_message: int = option(8, "Images in one message.", env="COSMOS3_REASONER_IMAGES", ge=0, le=64)
    media_allow: Repeated = option(
        (), "HOST[:PORT] that media may be fetched from although its address is private.",
        env="COSMOS3_REASONER_MEDIA_ALLOW",
    )  # fmt: skip
    allowed_s3_roots: str = option(
        "", "Comma list of s3://bucket[/prefix] that media may come from; empty refuses s3 media.",
        env="COSMOS3_REASONER_ALLOWED_S3_ROOTS",
    )  # fmt: skip
    store_dir: Path | None = option(
        None, "Where media and uploaded files are kept; default: in --cache-dir.", env="COSMOS3_REASONER_STORE_DIR"
    )
    store_bytes: ByteSize = option(
        20 * 1024 * MIB, "Bytes of media kept; the least recently used go first.", env="COSMOS3_REASONER_STORE_BYTES",
        ge=MIB,
    )  # fmt: skip
    store_hours: float = option(24.0, "Age at which unused media is removed.", env="COSMOS3_REASONER_STORE_HOURS", gt=0)
    media_store: str | None = option(
        None, "Uploads shared by gateways: s3://bucket/prefix, or file:///dir; default: in --store-dir.",
        env="COSMOS3_REASONER_MEDIA_STORE",
    )  # fmt: skip
    media_store_bytes: ByteSize = option(
        200 * 1024 * MIB, "Bytes of shared uploads of all tenants.", env="COSMOS3_REASONER_MEDIA_STORE_BYTES", ge=MIB
    )
    media_store_tenant_bytes: ByteSize = option(
        20 * 1024 * MIB, "Bytes of shared uploads of one tenant.", env="COSMOS3_REASONER_MEDIA_STORE_TENANT_BYTES",
        ge=MIB,
    )  # fmt: skip
    vllm_python: Path | None = option(
        None, "Python that has vLLM; default: .venv-vllm beside this one, else this one.", env="COSMOS3_VLLM_PYTHON"
    )
    vllm_args: Repeated = option(
        (), "One more argument for vLLM, for example --vllm-arg=--gpu-memory-utilization=0.8.",
        env="COSMOS3_VLLM_ARGS", flag="--vllm-arg",
    )  # fmt: skip
    queue_limit: int = option(
        512, "Questions that one gateway lets wait while every replica is full; past it 429.",
        env="COSMOS3_REASONER_QUEUE_LIMIT", ge=0,
    )  # fmt: skip
    queue_timeout_s: float = option(
        120.0, "Seconds that a question may wait for a replica; then 429.", env="COSMOS3_REASONER_QUEUE_TIMEOUT_S", gt=0
    )
    answer_timeout_s: float = option(
        300.0, "Seconds without a byte of an answer after which its replica counts as hung.",
        env="COSMOS3_REASONER_ANSWER_TIMEOUT_S", gt=0,
    )  # fmt: skip
    start_timeout_s: float = option(
        900.0, "Seconds that a replica may take to load.", env="COSMOS3_REASONER_START_TIMEOUT_S", gt=0
    )
    drain_timeout_s: float = option(
        60.0, "Seconds that running answers get to finish on shutdown.", env="COSMOS3_REASONER_DRAIN_TIMEOUT_S", ge=0
    )
    ray_address: str | None = option(None, "Join this Ray cluster instead of owning one.", env="COSMOS3_RAY_ADDRESS")
    cache_dir: Path | None = option(
        None, "Where generated and fetched files are cached; default: the user's cache folder.", env="COSMOS3_CACHE_DIR"
    )
    log_level: Literal["debug", "info", "warning", "error"] = option("info", "Log level.", env="COSMOS3_LOG_LEVEL")

    @field_validator("session_headers", "media_allow", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """An environment variable holds a comma list."""
        return tuple(word.strip() for word in value.split(",") if word.strip()) if isinstance(value, str) else value

    @field_validator("vllm_args", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        """An environment variable holds words as for a shell: a value may be JSON with commas in it."""
        return tuple(shlex.split(value)) if isinstance(value, str) else value
