"""The acceptance checklist: what a run has shown, and nothing that it has not."""

from typing import Any

import pytest

from cosmos3_serve.checks.golden_checklist import NOT_SHOWN, OUTSIDE, SHOWN, checklist

RESULT: dict[str, Any] = {
    "failures": [],
    "target": {"target": "sm_120"},
    "guardrails": {"configured": True, "applied": True},
    "batch_size": 2,
    "images": [{}, {}],
}
S3 = "s3://bucket/golden/"


def states(changes: dict[str, Any] | None = None, target: str = "sm_120", place: str = S3) -> dict[str, str]:
    return {row["item"]: row["state"] for row in checklist(RESULT | (changes or {}), target, place)}


def test_a_whole_run_shows_all_but_what_lies_outside() -> None:
    found = states()
    assert [item for item, state in found.items() if state == OUTSIDE] == ["image scans", "anonymous pull"]
    assert sorted(found.values()) == sorted([OUTSIDE] * 2 + [SHOWN] * 5)


@pytest.mark.parametrize(
    ("changes", "target", "place", "missing"),
    [
        ({}, "", S3, {"the device, by /system-info"}),
        ({"target": {"target": "sm_100"}}, "sm_120", S3, {"the device, by /system-info"}),
        ({"target": None}, "sm_120", S3, {"the device, by /system-info"}),
        ({"guardrails": {"configured": True, "applied": False}}, "sm_120", S3, {"guarded readiness"}),
        ({"guardrails": {"configured": False, "applied": False}}, "sm_120", S3, {"guarded readiness"}),
        ({"images": [{}]}, "sm_120", S3, {"two decodable artifacts"}),
        ({"batch_size": 1}, "sm_120", S3, {"a batch of two with structured outputs"}),
        ({}, "sm_120", "golden/publication", {"request, response and provenance in S3"}),
    ],
)
def test_what_was_not_shown_is_said(changes: dict[str, Any], target: str, place: str, missing: set[str]) -> None:
    assert {item for item, state in states(changes, target, place).items() if state == NOT_SHOWN} == missing


def test_a_failed_run_shows_the_device_only() -> None:
    found = states({"failures": ["it broke"]})
    assert [item for item, state in found.items() if state == SHOWN] == ["the device, by /system-info"]
