"""TextGuard: runs every checker over every text and believes only a plain yes or no."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import structlog

from cosmos3_serve.errors import GuardrailsUnavailable, SampleCode, SampleError
from cosmos3_serve.generator.guardrails.record import DECISIONS, CheckRecord, Decision

log = structlog.get_logger(__name__)

Texts = Sequence[tuple[str, str]]


class TextChecker(Protocol):
    """One way to judge a text. `name` is short and stable, `revision` the commit of what it judges with."""

    name: str
    checker: str
    revision: str

    def judge(self, text: str) -> bool:
        """Whether the text may pass. Raises when it came to no decision."""
        ...


class TextGuard:
    """
    Raises:
        GuardrailsUnavailable: `guardrail_no_checkers`: an empty list would let everything pass.
    """

    def __init__(self, checkers: Sequence[TextChecker], *, now: Callable[[], float] = time.perf_counter) -> None:
        if not checkers:
            raise GuardrailsUnavailable(
                "no text checker was loaded: every prompt would pass", code="guardrail_no_checkers"
            )
        self._checkers = tuple(checkers)
        self._now = now

    @property
    def names(self) -> list[str]:
        return [checker.name for checker in self._checkers]

    def check(self, texts: Texts) -> list[CheckRecord]:
        """One record per text and checker, in order. After the first that does not pass nothing more is run."""
        records: list[CheckRecord] = []
        stopped = False
        for field, text in texts:
            for checker in self._checkers:
                began = self._now()
                decision: Decision = "not_run" if stopped else _judged(checker, text)
                took = (self._now() - began) * 1000.0
                check = f"{field}.{checker.name}"
                records.append(CheckRecord(check, decision, checker.checker, checker.revision, took))
                stopped = stopped or decision != "passed"
        return records

    def undecided(self, texts: Texts) -> list[CheckRecord]:
        """The records of texts over which time ran out: nothing was decided."""
        return [
            CheckRecord(f"{field}.{checker.name}", "failed", checker.checker, checker.revision)
            for field, _ in texts
            for checker in self._checkers
        ]


def _judged(checker: TextChecker, text: str) -> Decision:
    try:
        verdict: object = checker.judge(text)
    except Exception as error:  # whatever broke, nothing was decided; its words may quote the text
        log.error("text_checker_failed", checker=checker.name, exc_info=error)
        return "failed"
    if verdict is True:
        return "passed"
    if verdict is False:
        return "blocked"
    log.error("text_checker_undecided", checker=checker.name, answer=verdict.__class__.__name__)
    return "failed"


def read_records(answer: Any, texts: Texts, names: Sequence[str]) -> list[CheckRecord]:
    """The records out of a guard's answer, which came over a wire.

    Raises:
        ValueError: it is not exactly one record per text and checker, in order, each with a known decision.
    """
    if not isinstance(answer, list):
        raise ValueError("no list of records")
    records = []
    for row in answer:
        record = CheckRecord(**row) if isinstance(row, dict) else row
        if not isinstance(record, CheckRecord) or record.decision not in DECISIONS:
            raise ValueError("no record of a check")
        records.append(record)
    expected = [f"{field}.{name}" for field, _ in texts for name in names]
    if not names or [record.check for record in records] != expected:
        raise ValueError("other checks than were asked for")
    return records


def refusal(records: Sequence[CheckRecord]) -> SampleError | None:
    """Why the sample may not go on; None only if every record says `passed`."""
    blocked = next((record for record in records if record.decision == "blocked"), None)
    if blocked is not None:
        field = blocked.check.partition(".")[0]
        return SampleError(SampleCode.GUARDRAIL_BLOCKED, f"{field} was blocked by the guardrails")
    open_ = next((record for record in records if record.decision != "passed"), None)
    if open_ is not None:
        field = open_.check.partition(".")[0]
        return SampleError(
            SampleCode.GUARDRAIL_FAILED, f"{field} could not be checked, and what is unchecked never runs"
        )
    return None
