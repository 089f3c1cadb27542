"""Settings of the reasoner service (`cosmos3 reasoner serve`)."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Literal

from pydantic import ByteSize, field_validator

from cosmos3_serve.settings.base import MIB, Port, Repeated, Settings, listed, option
from cosmos3_serve.settings.workers import WorkerRange, Workers


class ReasonerSettings(Settings):
    """What an operator may set on `cosmos3 reasoner serve`."""

    host: str = option("0.0.0.0", "Address of the public port.", env="COSMOS3_REASONER_HOST")
    port: Port = option(8000, "Public port; 0 picks a free one.", env="COSMOS3_REASONER_PORT", ge=0, le=65535)
    model: str = option(
        "Cosmos3-Nano",
        "Checkpoint: a local directory, a Hub id, `blockworld` (small, trained) or `tiny` (random weights, for tests"
        " and trials).",
        env="COSMOS3_REASONER_MODEL",
        min_length=1,
    )
    workers: Workers = option(
        WorkerRange(1, 1), "Replicas, each with its own caches and, where there are GPUs, one GPU: a number, or a range"
        " such as 2:8 that follows the load; 0:4 sleeps while nobody asks.", env="COSMOS3_REASONER_WORKERS",
    )  # fmt: skip
    scale_load: int | None = option(
        None, "Answers in flight or waiting for each replica of a range; default: three quarters of --max-num-seqs.",
        env="COSMOS3_REASONER_SCALE_LOAD", ge=1, le=65536,
    )  # fmt: skip
    scale_down_after_s: float = option(
        300.0, "Seconds of less load after which replicas of a range go.", env="COSMOS3_REASONER_SCALE_DOWN_AFTER_S",
        ge=1, le=86_400,
    )  # fmt: skip
    gateways: int = option(
        1, "Gateway processes on the public port; with a range of workers the most, in proportion to the replicas.",
        env="COSMOS3_REASONER_GATEWAYS", ge=1, le=64,
    )  # fmt: skip
    routing: Literal["round-robin", "session-affinity"] = option(
        "session-affinity", "Whether questions of one session share a replica.", env="COSMOS3_REASONER_ROUTING"
    )
    share_caches: bool = option(
        False, "Tenants share cached prompts and media, and can see that they do.", env="COSMOS3_REASONER_SHARE_CACHES"
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
    tool_parser: str = option(
        "hermes",
        "How vLLM reads tool calls out of the model's words: one of its parsers; none: tools are refused.",
        env="COSMOS3_REASONER_TOOL_PARSER",
        min_length=1,
    )
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
    replica_tls: bool = option(
        False, "TLS between gateways and replicas, with a certificate of this start that they alone trust.",
        env="COSMOS3_REASONER_REPLICA_TLS",
    )  # fmt: skip
    hang_timeout_s: float = option(
        60.0, "Seconds in which an engine with work to do computes nothing, after which it is replaced.",
        env="COSMOS3_REASONER_HANG_TIMEOUT_S", ge=5,
    )  # fmt: skip
    start_timeout_s: float = option(
        900.0, "Seconds that a replica may take to load.", env="COSMOS3_REASONER_START_TIMEOUT_S", gt=0
    )
    drain_timeout_s: float = option(
        60.0, "Seconds that running answers get to finish on shutdown.", env="COSMOS3_REASONER_DRAIN_TIMEOUT_S", ge=0
    )
    ray_address: str | None = option(None, "Join this Ray cluster instead of owning one.", env="COSMOS3_RAY_ADDRESS")
    name: str = option(
        "", "Name of the service on a cluster that others use too; each has a name and a port of its own.",
        env="COSMOS3_REASONER_NAME", pattern=r"^([a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?)?$",
    )  # fmt: skip
    cache_dir: Path | None = option(
        None, "Where generated and fetched files are cached; default: the user's cache folder.", env="COSMOS3_CACHE_DIR"
    )
    log_level: Literal["debug", "info", "warning", "error"] = option("info", "Log level.", env="COSMOS3_LOG_LEVEL")

    @field_validator("session_headers", "media_allow", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """An environment variable holds a comma list."""
        return listed(value)

    @field_validator("vllm_args", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        """An environment variable holds words as for a shell: a value may be JSON with commas in it."""
        return tuple(shlex.split(value)) if isinstance(value, str) else value

    @property
    def reads_tools(self) -> bool:
        """Whether vLLM reads tool calls: by our setting, or by an operator's own arguments."""
        return self.tool_parser != "none" or any(word.startswith("--tool-call-parser") for word in self.vllm_args)
