"""`ReadyReport`: the body of `GET /ready` (source: wire baseline section 1; checks by generator spec, HTTP)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field


class Check(BaseModel):
    """One check with its reason; `reason` says what was seen when it holds and what to do when it does not."""

    model_config = ConfigDict(extra="ignore")

    name: str
    ok: bool
    reason: str = ""


class ReadyReport(BaseModel):
    """Baseline fields first; `status` is `ready` exactly when there are checks and all hold.

    `guardrails` is the configured flag, as in the baseline; `guardrails_effective` says whether the checkers are
    loaded. `target` and `target_status` name the hardware and what may be claimed of it (see `contract.targets`), empty
    until the engine has answered; the framework revision alone binds defaults only where `custom_defaults` is false.
    """

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    backend: str
    model: str
    guardrails: bool
    world_size: int
    max_batch_size: int
    model_max_ongoing_requests: int
    batch_wait_timeout_s: float
    framework_revision: str
    server_source_revision: str
    weights_baked: Literal[False] = False
    engine: str = ""
    checkpoint: str = ""
    checkpoint_revision: str | None = None
    checkpoint_digest: str | None = None
    weights: Literal["random", "pretrained", "unknown"] = "unknown"
    guardrails_effective: bool = False
    max_num_seqs: int | None = None
    queue_depth: int | None = None
    target: str = ""
    target_status: str = ""
    target_forced: bool = False
    custom_defaults: bool = False
    defaults_sha256: str | None = None
    checks: list[Check] = Field(default_factory=list)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def status(self) -> Literal["ready", "not_ready"]:
        return "ready" if self.checks and not self.failing else "not_ready"

    @property
    def failing(self) -> list[Check]:
        return [check for check in self.checks if not check.ok]
