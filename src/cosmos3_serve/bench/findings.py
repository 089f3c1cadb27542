"""Findings: named reasons for which a run has no figures."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from cosmos3_serve.bench.records import Request, Run
from cosmos3_serve.errors import FieldError, Refusal

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """`code` is stable; `count` is how often, `example` where first."""

    code: str
    text: str
    count: int = 1
    example: str = ""

    def as_text(self) -> str:
        first = f", first {self.example}" if self.example else ""
        return f"{self.text} ({self.count} times{first})"


def refuse(findings: Sequence[Finding]) -> None:
    """
    Raises:
        Refusal: code `run_invalid`, if there is any finding.
    """
    if not findings:
        return
    more = f" (and {len(findings) - 1} more)" if findings[1:] else ""
    raise Refusal(
        f"the run is invalid: {findings[0].text}{more}",
        code="run_invalid",
        remedy="mend what the findings name and run again; the records are kept, figures are not",
        errors=[FieldError(finding.code, finding.as_text()) for finding in findings],
    )


def most(kinds: Counter[str]) -> str:
    """The commonest of them, with how often."""
    return ", ".join(f"{kind} ×{count}" for kind, count in kinds.most_common(SHOWN))


def by_level(run: Run) -> dict[tuple[int, int], list[Request]]:
    """The requests of each level, by repeat and concurrency."""
    found: dict[tuple[int, int], list[Request]] = defaultdict(list)
    for request in run.requests:
        found[request.repeat, request.concurrency].append(request)
    return found


def of_requests(code: str, text: str, bad: Sequence[Request]) -> Finding:
    return Finding(code, text, len(bad), request_name(bad[0]))


def request_name(request: Request) -> str:
    return f"{request.video}, question {request.turn} at {level_name((request.repeat, request.concurrency))}"


def level_name(key: tuple[int, int]) -> str:
    return f"concurrency {key[1]}, repeat {key[0]}"
