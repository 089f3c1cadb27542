"""Settings: one frozen model per service, the single source for flags, environment variables and documentation.

A value is taken from the flag, else from the environment, else from the default here; a flag that was not given never
overwrites an environment value. `option()` binds a field to both names, `load()` applies the rule, and the CLI and the
settings table of the documentation are generated from the same fields.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from cosmos3_serve.errors import FieldError, UsageError

TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"0", "false", "no", "off"})

TOKEN_ENV = "NPA_COSMOS3_RAY_TOKEN"
TOKEN_FILE_ENV = "NPA_COSMOS3_RAY_TOKEN_FILE"
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
            text = "; ".join(f"{e.field}: {e.message}" for e in found)
            remedy = "see the allowed values: the same command with --help"
            raise UsageError(f"invalid settings: {text}", remedy=remedy, errors=found) from None


Engine = Literal["framework", "diffusers"]


class GeneratorSettings(Settings):
    """What an operator may set on `cosmos3 ray-serve` (source: wire baseline sections 2 and 3, generator spec)."""

    # the baseline's own
    host: str = option("0.0.0.0", "Address of the public port.", env="NPA_COSMOS3_RAY_HOST")
    port: int = option(8000, "Public port; 0 picks a free one.", env="NPA_COSMOS3_RAY_PORT", ge=0, le=65535)
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
    allowed_s3_roots: str = option(
        "", "Comma list of s3://bucket[/prefix] that inputs may come from; empty refuses every media input.",
        env="NPA_COSMOS3_RAY_ALLOWED_S3_ROOTS",
    )  # fmt: skip
    # ours
    engine: Engine | None = option(
        None, "Inference engine; default: framework where its interpreter is found.", env="COSMOS3_ENGINE"
    )
    max_num_seqs: int | None = option(
        None, "Samples per inference call; default: --max-batch-size.", env="COSMOS3_MAX_NUM_SEQS", ge=1, le=256
    )
    queue_limit: int = option(4096, "Samples that may wait; past it 429.", env="COSMOS3_QUEUE_LIMIT", ge=1)
    max_samples: int = option(1024, "Samples in one batch.", env="COSMOS3_MAX_SAMPLES", ge=1)
    max_body_bytes: int = option(8 * MIB, "Request body, bytes.", env="COSMOS3_MAX_BODY_BYTES", ge=1024)
    max_input_bytes: int = option(512 * MIB, "One conditioning input, bytes.", env="COSMOS3_MAX_INPUT_BYTES", ge=1)
    input_timeout_s: float = option(
        120.0, "Seconds to fetch one conditioning input.", env="COSMOS3_INPUT_TIMEOUT_S", gt=0
    )
    retention_hours: float = option(
        168.0, "Age at which an ended batch is removed.", env="COSMOS3_RETENTION_HOURS", gt=0
    )
    retention_bytes: int = option(
        200 * 1024 * MIB, "Bytes of ended batches kept; the oldest go first.", env="COSMOS3_RETENTION_BYTES", ge=0
    )
    stall_timeout_s: float = option(
        600.0, "Seconds without progress after which a replica is replaced.", env="COSMOS3_STALL_TIMEOUT_S", gt=0
    )
    drain_timeout_s: float = option(
        60.0, "Seconds that running samples get to finish on shutdown.", env="COSMOS3_DRAIN_TIMEOUT_S", ge=0
    )
    ray_address: str | None = option(None, "Join this Ray cluster instead of owning one.", env="COSMOS3_RAY_ADDRESS")
    cache_dir: Path | None = option(
        None, "Where generated and fetched files are cached; default: the user's cache folder.", env="COSMOS3_CACHE_DIR"
    )
    device: Literal["auto", "cpu", "cuda"] = option("auto", "Device of the diffusers engine.", env="COSMOS3_DEVICE")
    log_level: Literal["debug", "info", "warning", "error"] = option("info", "Log level.", env="COSMOS3_LOG_LEVEL")

    @field_validator("guardrails", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        """The baseline's word list, so that a typo never silently turns guardrails off."""
        if isinstance(value, str):
            word = value.strip().lower()
            if word in TRUE_WORDS or word in FALSE_WORDS:
                return word in TRUE_WORDS
            raise ValueError(f"{value!r} is none of 1/true/yes/on, 0/false/no/off")
        return value

    @field_validator("port")
    @classmethod
    def _unprivileged(cls, value: int) -> int:
        if 0 < value < 1024:
            raise ValueError("must be 0 or at least 1024")
        return value

    @property
    def inference_batch_limit(self) -> int:
        """Samples per inference call: `--max-num-seqs`, else `--max-batch-size` (source: rulings, generator 13)."""
        return self.max_num_seqs or self.max_batch_size


class ClientSettings(Settings):
    """What a user may set on `cosmos3 ray-batch` besides the batch itself (source: wire baseline sections 2 and 3)."""

    endpoint: str = option("", "Address of the service, http(s)://host:port.", env="NPA_COSMOS3_RAY_ENDPOINT")
    token_env: str = option(TOKEN_ENV, "Name of the variable that holds the bearer token.", min_length=1)
    timeout: float = option(1800.0, "Seconds for the whole submission, one deadline.", ge=1, le=7 * 24 * 3600)
    concurrency: int = option(4, "Downloads at once.", env="COSMOS3_CLIENT_CONCURRENCY", ge=1, le=64)
    spool_bytes: int = option(
        16 * 1024 * MIB, "Most bytes of artifacts on the local disk at once.", env="COSMOS3_CLIENT_SPOOL_BYTES", ge=MIB
    )
    journal_dir: Path | None = option(
        None, "Where unfinished runs are kept; default: the user's state folder.", env="COSMOS3_CLIENT_JOURNAL_DIR"
    )
