"""Settings of batches of questions (`cosmos3 reasoner batch`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import field_validator

from cosmos3_serve.settings.base import REASONER_TOKEN_ENV, Settings, listed, option


class ReasonerBatchSettings(Settings):
    """What a user may set on `cosmos3 reasoner batch` besides the questions themselves."""

    endpoint: tuple[str, ...] = option(
        (),
        "Address of the service, http(s)://host:port; several share the work (in the variable: with commas).",
        env="COSMOS3_REASONER_ENDPOINT",
    )
    token_env: str = option(REASONER_TOKEN_ENV, "Name of the variable that holds the bearer token.", min_length=1)
    model: str = option(
        "nvidia/cosmos3-nano-reasoner", "Served name of the model, for questions that name none.", min_length=1
    )
    timeout: float | None = option(
        None, "Seconds for one attempt at a part; default: 1800, and 60 for each question.", ge=1, le=7 * 24 * 3600
    )
    answer_timeout: float = option(600.0, "Seconds without a byte of an answer.", ge=1, le=24 * 3600)
    concurrency: int = option(16, "Questions of a part at once.", env="COSMOS3_REASONER_CONCURRENCY", ge=1, le=1024)
    part_size: int = option(256, "Questions of a part, each part one publication.", ge=1, le=10_000)
    parallel_parts: int = option(2, "Parts that each service works on at once.", ge=1, le=64)
    part_attempts: int = option(
        2, "Attempts at a part before it is published without the questions that failed.", ge=1, le=100
    )
    journal_dir: Path | None = option(
        None, "Where answers are kept until they are published; default: the user's state folder.",
        env="COSMOS3_CLIENT_JOURNAL_DIR",
    )  # fmt: skip

    @field_validator("endpoint", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return listed(value)
