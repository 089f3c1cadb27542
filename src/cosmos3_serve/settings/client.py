"""Settings of the batch client (`cosmos3 ray-batch`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ByteSize, field_validator

from cosmos3_serve.settings.base import MIB, TOKEN_ENV, Settings, listed, option


class ClientSettings(Settings):
    """What a user may set on `cosmos3 ray-batch` besides the batch itself."""

    endpoint: tuple[str, ...] = option(
        (),
        "Address of the service, http(s)://host:port; a queue may use several (in the variable: with commas).",
        env="NPA_COSMOS3_RAY_ENDPOINT",
    )
    token_env: str = option(TOKEN_ENV, "Name of the variable that holds the bearer token.", min_length=1)
    expected_revision: str | None = option(
        None, "Framework revision that the service must report; default: the pinned framework commit.",
        env="COSMOS3_EXPECTED_REVISION", min_length=1,
    )  # fmt: skip
    timeout: float | None = option(
        None, "Seconds for the whole submission, one deadline; default: 1800, and 30 for each image, 5 for each frame.",
        env="COSMOS3_CLIENT_TIMEOUT_S", ge=1, le=7 * 24 * 3600,
    )  # fmt: skip
    concurrency: int = option(4, "Downloads at once.", env="COSMOS3_CLIENT_CONCURRENCY", ge=1, le=64)
    spool_bytes: ByteSize = option(
        16 * 1024 * MIB, "Most bytes of artifacts on the local disk at once.", env="COSMOS3_CLIENT_SPOOL_BYTES", ge=MIB
    )
    journal_dir: Path | None = option(
        None, "Where unfinished runs are kept; default: the user's state folder.", env="COSMOS3_CLIENT_JOURNAL_DIR"
    )
    parallel_parts: int = option(
        2, "Queues: parts that each service works on at once.", env="COSMOS3_CLIENT_PARALLEL_PARTS", ge=1, le=64
    )
    part_attempts: int = option(
        2, "Queues: attempts at a part before it is published without the samples that failed.",
        env="COSMOS3_CLIENT_PART_ATTEMPTS", ge=1, le=100,
    )  # fmt: skip

    @field_validator("endpoint", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return listed(value)
