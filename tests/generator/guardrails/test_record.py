"""The record of a sample's checks: configured and applied are two things."""

import pytest

from cosmos3_serve.generator.guardrails.record import CheckRecord, guard_record, merged

PASSED = CheckRecord("prompt.words", "passed", "the words", "a" * 40, 1.26)


def test_a_row() -> None:
    assert PASSED.as_dict() == {
        "check": "prompt.words", "decision": "passed", "checker": "the words", "revision": "a" * 40, "ms": 1.3,
    }  # fmt: skip
    assert CheckRecord("media", "not_run").as_dict() == {"check": "media", "decision": "not_run"}


@pytest.mark.parametrize(
    ("decision", "applied"),
    [("passed", True), ("altered", True), ("blocked", True), ("failed", False), ("not_run", False)],
)
def test_applied_means_that_something_was_decided(decision: str, applied: bool) -> None:
    record = guard_record(True, [CheckRecord("prompt.words", decision)])  # type: ignore[arg-type]
    assert (record["configured"], record["applied"]) == (True, applied)
    assert guard_record(True, [])["applied"] is False


def test_front_and_engine_make_one_record() -> None:
    engine = {
        "configured": True, "applied": False, "checks": [{"check": "media.face_blur", "decision": "not_run"}],
        "note": "kept",
    }  # fmt: skip
    record = merged([PASSED], engine)
    assert [row["check"] for row in record["checks"]] == ["prompt.words", "media.face_blur"]
    assert (record["configured"], record["applied"], record["note"]) == (True, True, "kept")
    assert merged([], {"configured": True, "applied": True, "checks": []})["applied"] is True
    assert merged([PASSED], {})["checks"] == [PASSED.as_dict()]
    assert merged([PASSED], {"checks": "odd", "applied": "yes"})["checks"] == [PASSED.as_dict()]
    assert merged([], {"applied": "yes"})["applied"] is False


@pytest.mark.parametrize(
    ("decision", "outputs"),
    [("passed", True), ("altered", True), ("blocked", True), ("failed", False), ("not_run", False), ("upstream", None)],
)
def test_texts_and_outputs_are_told_apart(decision: str, outputs: bool | None) -> None:
    row = CheckRecord("output.framework", decision).as_dict()  # type: ignore[arg-type]
    record = merged([PASSED], {"configured": True, "applied": False, "checks": [row]})
    assert (record["texts_applied"], record["outputs_applied"]) == (True, outputs)
    assert merged([], {"checks": [row]})["texts_applied"] is False


def test_off_stays_as_the_engine_says_it() -> None:
    off = {"configured": False, "applied": False, "checks": [{"check": "media", "decision": "not_run"}]}
    assert merged(None, off) == off
