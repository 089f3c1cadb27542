"""The seam for guardrails: what a guard answers, and the guard of an operator who opted out.

Checks fail closed: whoever calls a guard turns a raised exception into a failed sample, never into a passed one.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Literal, Protocol

from cosmos3_serve.errors import GuardrailsUnavailable
from cosmos3_serve.generator.engines.media import Frames

Decision = Literal["passed", "blocked", "not_run"]


class Guard(Protocol):
    """Checks prompts before any accelerator work and media before anything is written.

    `configured` says what the operator asked for; a decision of `not_run` says that nothing was checked.
    """

    configured: bool

    def check_prompt(self, text: str) -> Decision: ...

    def check_media(self, frames: Frames) -> tuple[Frames, Decision]:
        """Frames [T, H, W, 3] as they may be delivered (a check may blur faces), and the decision."""
        ...


class NoGuard:
    """No checks, and says so in every record."""

    configured = False

    def check_prompt(self, text: str) -> Decision:
        return "not_run"

    def check_media(self, frames: Frames) -> tuple[Frames, Decision]:
        return frames, "not_run"


def make_guard(enabled: bool) -> Guard:
    """The guard for `--guardrails` or `--no-guardrails`.

    Raises:
        GuardrailsUnavailable: guardrails are on; this engine cannot run them yet, and running without them in silence
            is what an operator who asked for them must never get.
    """
    if not enabled:
        return NoGuard()
    if find_spec("cosmos_guardrail") is None:
        reason = "the package cosmos-guardrail is not installed"
    else:
        reason = "this version does not run the cosmos-guardrail checks yet"
    raise GuardrailsUnavailable(
        f"guardrails are on, but the diffusers engine cannot apply them: {reason}",
        remedy="start with --no-guardrails to run without checks, or use the framework engine",
    )


def guard_record(guard: Guard, **decisions: Decision) -> dict[str, Any]:
    """A sample's guardrail record: what was asked for, what ran, what was decided."""
    return {
        "configured": guard.configured,
        "applied": any(decision != "not_run" for decision in decisions.values()),
        "checks": [{"check": check, "decision": decision} for check, decision in decisions.items()],
    }
