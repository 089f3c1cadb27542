"""What is recorded of a sample's checks: which ran, at which revision, what they decided, how long it took.

Never the text, and never a checker's own message: those quote the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

# `altered`: passed after something was made unrecognisable. `failed`: it ran, and came to no valid decision.
# `upstream`: left to the framework, which reports only what it blocks.
Decision = Literal["passed", "altered", "blocked", "failed", "not_run", "upstream"]
DECISIONS = frozenset(get_args(Decision))
DECIDED = frozenset({"passed", "altered", "blocked"})


@dataclass(frozen=True, slots=True)
class CheckRecord:
    """One check of one text or of the media.

    Args:
        check: what was checked and with what, such as `prompt.blocklist`.
        checker, revision: whose check it is, and the commit of its data or weights.
        ms: milliseconds it took.
    """

    check: str
    decision: Decision
    checker: str = ""
    revision: str = ""
    ms: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        row: dict[str, Any] = {"check": self.check, "decision": self.decision}
        if self.checker:
            row |= {"checker": self.checker, "revision": self.revision, "ms": round(self.ms, 1)}
        return row


def guard_record(configured: bool, checks: Iterable[CheckRecord]) -> dict[str, Any]:
    """A sample's guardrail record. `configured` is what the operator asked for, `applied` whether any check decided."""
    rows = [check.as_dict() for check in checks]
    return {"configured": configured, "applied": any(row["decision"] in DECIDED for row in rows), "checks": rows}


def merged(front: Sequence[CheckRecord] | None, engine: Mapping[str, Any]) -> dict[str, Any]:
    """One record of the text check in front and of what the engine says of its own checks.

    `texts_applied` and `outputs_applied` say for each kind whether any check decided. The latter is None where the
    output checks are left to the framework, which reports only what it blocks.

    Args:
        front: None where there is no text check, because guardrails are off.
        engine: the engine's record, kept as it is but for the three fields that both have.
    """
    if front is None:
        return dict(engine)
    own = guard_record(True, front)
    theirs = engine.get("checks")
    rows = own["checks"] + (theirs if isinstance(theirs, list) else [])
    return {
        **engine,
        "configured": True,
        "applied": own["applied"] or engine.get("applied") is True,
        "texts_applied": own["applied"],
        "outputs_applied": _outputs_applied(rows[len(own["checks"]) :]),
        "checks": rows,
    }


def _outputs_applied(rows: Sequence[object]) -> bool | None:
    decisions = {row.get("decision") for row in rows if isinstance(row, Mapping)}
    if decisions & DECIDED:
        return True
    return None if "upstream" in decisions else False
