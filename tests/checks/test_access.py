"""`health access`: one row per asset, by what the stub Hub answers for the exact file at the pinned revision."""

import pytest
from support.hub import GOOD_TOKEN, OTHER_TOKEN, StubHub

from cosmos3_serve.checks.access import access
from cosmos3_serve.errors import UsageError
from cosmos3_serve.weights.assets import GUARDRAIL1, NANO

NAMES = ["ngc", NANO.repo, GUARDRAIL1.repo]


async def statuses(hub: StubHub, token: str | None, **flags: bool) -> list[str]:
    report = await access("cosmos3", hub.environ(token), **flags)
    assert [row.name for row in report.rows] == NAMES
    return [row.status.value for row in report.rows]


async def test_an_entitled_token_passes_every_row(hub: StubHub) -> None:
    report = await access("cosmos3", hub.environ(GOOD_TOKEN), strict=True)
    assert report.ok and report.exit_code == 0
    gated = report.rows[2]
    assert f"revision {GUARDRAIL1.revision}" in gated.details and f"asked for {GUARDRAIL1.probe_file}" in gated.details
    assert hub.downloads() == [] and GOOD_TOKEN not in str(report)


async def test_a_token_without_entitlement_fails_with_the_licence_page(hub: StubHub) -> None:
    report = await access("cosmos3", hub.environ(OTHER_TOKEN))
    assert [row.status for row in report.rows] == ["PASS", "PASS", "FAIL"] and report.exit_code == 3
    assert f"https://huggingface.co/{GUARDRAIL1.repo}" in report.rows[2].remedy
    assert (await access("cosmos3", hub.environ(OTHER_TOKEN), warn_only=True)).exit_code == 0


async def test_no_token_is_a_warning_that_strict_refuses(hub: StubHub) -> None:
    report = await access("cosmos3", hub.environ(None))
    assert [row.status for row in report.rows] == ["PASS", "PASS", "WARN"] and report.ok
    assert (await access("cosmos3", hub.environ(None), strict=True)).exit_code == 3


async def test_offline_asks_nobody(hub: StubHub) -> None:
    assert await statuses(hub, GOOD_TOKEN, offline=True) == ["PASS", "SKIP", "SKIP"]
    report = await access("cosmos3", {**hub.environ(), "HF_HUB_OFFLINE": "1"})
    assert [row.status for row in report.rows] == ["PASS", "SKIP", "SKIP"] and hub.asked == []


@pytest.mark.parametrize(("status", "expected"), [(500, "WARN"), (429, "WARN"), (404, "FAIL"), (403, "FAIL")])
async def test_other_answers(hub: StubHub, status: int, expected: str) -> None:
    hub.status = status
    assert await statuses(hub, GOOD_TOKEN) == ["PASS", expected, expected]


async def test_a_login_page_proves_nothing(hub: StubHub) -> None:
    hub.login_page = True
    assert await statuses(hub, GOOD_TOKEN) == ["PASS", "WARN", "WARN"]


async def test_usage(hub: StubHub) -> None:
    with pytest.raises(UsageError, match="unknown capability"):
        await access("cosmos4", hub.environ())
    with pytest.raises(UsageError):
        await access("cosmos3", hub.environ(), strict=True, warn_only=True)
    assert hub.asked == []
