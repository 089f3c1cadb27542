"""TextGuard believes a plain yes or no; `read_records` and `refusal` believe nothing else either."""

import itertools

import pytest
from structlog.testing import capture_logs
from support.guard import BLOCK, NONSENSE, RAISE, CheckerDouble

from cosmos3_serve.errors import GuardrailsUnavailable
from cosmos3_serve.generator.guardrails.record import CheckRecord
from cosmos3_serve.generator.guardrails.text_guard import TextGuard, read_records, refusal
from cosmos3_serve.service.tracebacks import Tracebacks

TEXTS = [("prompt", "a cat"), ("negative_prompt", "fog")]


def test_every_checker_sees_every_text() -> None:
    one, two = CheckerDouble("one"), CheckerDouble("two")
    ticks = itertools.count(0.0, 0.25)
    records = TextGuard([one, two], now=lambda: next(ticks)).check(TEXTS)
    assert [(r.check, r.decision, r.revision, r.ms) for r in records] == [
        ("prompt.one", "passed", "0" * 40, 250.0),
        ("prompt.two", "passed", "0" * 40, 250.0),
        ("negative_prompt.one", "passed", "0" * 40, 250.0),
        ("negative_prompt.two", "passed", "0" * 40, 250.0),
    ]
    assert (one.asked, two.asked) == (2, 2)
    assert refusal(records) is None


@pytest.mark.parametrize(
    ("word", "decision", "code"),
    [
        (BLOCK, "blocked", "guardrail_blocked"),
        (RAISE, "failed", "guardrail_failed"),
        (NONSENSE, "failed", "guardrail_failed"),
    ],
)
@pytest.mark.parametrize("field", ["prompt", "negative_prompt"])
def test_the_first_that_does_not_pass_ends_it(word: str, decision: str, code: str, field: str) -> None:
    one, two = CheckerDouble("one"), CheckerDouble("two")
    texts = [(name, f"secret words {word}" if name == field else text) for name, text in TEXTS]
    with capture_logs(processors=[Tracebacks(messages=False)]) as lines:
        records = TextGuard([one, two]).check(texts)
    decisions = {r.check: r.decision for r in records}
    assert decisions[f"{field}.one"] == decision
    assert decisions[f"{field}.two"] == "not_run" and len(records) == 4
    refused = refusal(records)
    assert refused is not None and refused.stable_code == code and field in refused.detail
    assert "secret" not in str(lines) + refused.detail + str(records)


def test_no_checker_is_no_guard() -> None:
    with pytest.raises(GuardrailsUnavailable) as refused:
        TextGuard([])
    assert refused.value.stable_code == "guardrail_no_checkers"


GOOD = [{"check": "prompt.a", "decision": "passed"}, {"check": "negative_prompt.a", "decision": "passed"}]


def test_records_over_the_wire() -> None:
    assert [r.decision for r in read_records(GOOD, TEXTS, ["a"])] == ["passed", "passed"]


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        True,
        "passed",
        {},
        GOOD[:1],
        GOOD[::-1],
        [*GOOD, GOOD[0]],
        [{**GOOD[0], "decision": "fine"}, GOOD[1]],
        [{**GOOD[0], "extra": 1}, GOOD[1]],
        [True, True],
        [{"check": "prompt.a"}, GOOD[1]],
    ],
)
def test_anything_else_is_nonsense(answer: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        read_records(answer, TEXTS, ["a"])


def test_a_guard_without_checkers_is_nonsense_too() -> None:
    with pytest.raises(ValueError, match="asked for"):
        read_records([], TEXTS, [])


@pytest.mark.parametrize("decision", ["not_run", "failed", "altered"])
def test_only_passed_passes(decision: str) -> None:
    refused = refusal([CheckRecord("prompt.a", decision)])  # type: ignore[arg-type]
    assert refused is not None and refused.stable_code == "guardrail_failed"
