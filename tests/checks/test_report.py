"""What rows mean together: `ok`, the exit code, and the exact keys of the JSON."""

import pytest

from cosmos3_serve.checks.report import Report, Row, Status, make_report
from cosmos3_serve.errors import UsageError


def report(*statuses: Status, **flags: bool) -> Report:
    rows = [Row(f"check-{i}", status, "seen", "mend it", ("one",)) for i, status in enumerate(statuses)]
    return make_report(rows, strict=flags.get("strict", False), warn_only=flags.get("warn_only", False))


@pytest.mark.parametrize(
    ("statuses", "flags", "ok", "code"),
    [
        ((Status.PASS, Status.SKIP), {}, True, 0),
        ((Status.PASS, Status.WARN), {}, True, 0),
        ((Status.PASS, Status.WARN), {"strict": True}, False, 3),
        ((Status.SKIP,), {"strict": True}, True, 0),
        ((Status.FAIL, Status.PASS), {}, False, 3),
        ((Status.FAIL,), {"warn_only": True}, False, 0),
        ((), {}, True, 0),
    ],
)
def test_what_refuses(statuses: tuple[Status, ...], flags: dict[str, bool], ok: bool, code: int) -> None:
    found = report(*statuses, **flags)
    assert (found.ok, found.exit_code) == (ok, code)


def test_strict_and_warn_only_contradict_each_other() -> None:
    with pytest.raises(UsageError):
        report(strict=True, warn_only=True)


def test_the_json_has_the_baselines_keys() -> None:
    assert report(Status.WARN).as_dict() == {
        "checks": [
            {"name": "check-0", "status": "WARN", "summary": "seen", "remedy": "mend it", "details": ["one"]},
        ],
        "ok": True,
    }


def test_people_see_status_name_details_and_remedy() -> None:
    text = "\n".join(report(Status.FAIL).lines())
    assert text.startswith("FAIL  check-0  seen") and "- one" in text and "what to do: mend it" in text
