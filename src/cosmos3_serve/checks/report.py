"""Results of checks: one row each, and the report that they make together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cosmos3_serve.errors import ExitCode, UsageError


class Status(StrEnum):
    """SKIP: not asked. WARN: not known. FAIL: known to be wrong, or something required is missing."""

    PASS = "PASS"
    WARN = "WARN"
    FAIL = "FAIL"
    SKIP = "SKIP"


@dataclass(frozen=True, slots=True)
class Row:
    """One check. No field ever holds a secret, an account's name or a bucket's."""

    name: str
    status: Status
    summary: str
    remedy: str = ""
    details: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "status": self.status.value,
            "summary": self.summary,
            "remedy": self.remedy,
            "details": list(self.details),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """Rows in the order they were asked for.

    Args:
        strict: a warning refuses too.
        warn_only: nothing refuses; `ok` still tells.
    """

    rows: tuple[Row, ...]
    strict: bool = False
    warn_only: bool = False

    @property
    def ok(self) -> bool:
        bad = {Status.FAIL, Status.WARN} if self.strict else {Status.FAIL}
        return not any(row.status in bad for row in self.rows)

    @property
    def exit_code(self) -> int:
        return ExitCode.DONE if self.ok or self.warn_only else ExitCode.REFUSED

    def as_dict(self) -> dict[str, Any]:
        return {"checks": [row.as_dict() for row in self.rows], "ok": self.ok}

    def lines(self) -> list[str]:
        """For people: one line a row, its details and its remedy below."""
        width = max((len(row.name) for row in self.rows), default=0)
        lines = []
        for row in self.rows:
            lines.append(f"{row.status.value:4}  {row.name:{width}}  {row.summary}")
            lines += [f"      {'':{width}}  - {detail}" for detail in row.details]
            if row.remedy:
                lines.append(f"      {'':{width}}  what to do: {row.remedy}")
        return lines


def make_report(rows: Sequence[Row], *, strict: bool, warn_only: bool) -> Report:
    """
    Raises:
        UsageError: both at once: one asks to refuse more, the other never to.
    """
    refuse_both(strict, warn_only)
    return Report(tuple(rows), strict, warn_only)


def refuse_both(strict: bool, warn_only: bool) -> None:
    """Asked before anything is sent. Raises UsageError."""
    if strict and warn_only:
        raise UsageError("--strict and --warn-only contradict each other", remedy="give one of them")
