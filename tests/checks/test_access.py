"""`health access`: one row per asset, by what the stub Hub answers for the exact file at the pinned revision."""

import pytest
from support.guardrail_hub import REVISION_1_0
from support.hub import GOOD_TOKEN, OTHER_TOKEN, StubHub

from cosmos3_serve.checks.access import access
from cosmos3_serve.errors import UsageError
from cosmos3_serve.weights.assets import AVAE, GUARDRAIL1, GUARDRAIL_1_0, NANO, QWEN_GUARD, WAN_VAE

NAMES = ["ngc", NANO.repo, GUARDRAIL1.repo, QWEN_GUARD.repo, WAN_VAE.repo, AVAE.repo]


async def statuses(hub: StubHub, token: str | None, **flags: bool) -> list[str]:
    report = await access("cosmos3", hub.environ(token), **flags)
    assert [row.name for row in report.rows] == NAMES
    return [row.status.value for row in report.rows]


async def test_an_entitled_token_passes_every_row(hub: StubHub) -> None:
    report = await access("cosmos3", hub.environ(GOOD_TOKEN), strict=True)
    assert report.ok and report.exit_code == 0
    gated = report.rows[2]
    assert [row.details[0] for row in report.rows[3:]] == [a.purpose for a in (QWEN_GUARD, WAN_VAE, AVAE)]
    assert f"revision {GUARDRAIL1.revision}" in gated.details and f"asked for {GUARDRAIL1.probe_file}" in gated.details
    assert hub.downloads() == [] and GOOD_TOKEN not in str(report)


async def test_a_token_without_entitlement_fails_with_the_licence_page(hub: StubHub) -> None:
    report = await access("cosmos3", hub.environ(OTHER_TOKEN))
    assert [row.status for row in report.rows] == ["PASS", "PASS", "FAIL", *["PASS"] * 3]
    assert report.exit_code == 3
    assert f"https://huggingface.co/{GUARDRAIL1.repo}" in report.rows[2].remedy
    assert (await access("cosmos3", hub.environ(OTHER_TOKEN), warn_only=True)).exit_code == 0


async def test_a_gated_asset_without_a_token_fails(hub: StubHub) -> None:
    report = await access("cosmos3", hub.environ(None))
    assert [row.status for row in report.rows] == ["PASS", "PASS", "FAIL", *["PASS"] * 3]
    assert not report.ok and report.exit_code == 3 and "HF_TOKEN" in report.rows[2].remedy
    assert (await access("cosmos3", hub.environ(None), warn_only=True)).exit_code == 0


@pytest.mark.parametrize("named", [True, False], ids=["--engine", "COSMOS3_ENGINE"])
async def test_each_engine_has_its_own_assets(hub: StubHub, named: bool) -> None:
    environ = hub.environ() | {"COSMOS3_GUARDRAIL_REVISION": REVISION_1_0}
    flag = {"engine": "diffusers"} if named else {}
    report = await access("cosmos3", environ if named else environ | {"COSMOS3_ENGINE": "diffusers"}, **flag)
    assert [row.name for row in report.rows] == ["ngc", NANO.repo, GUARDRAIL_1_0.repo, QWEN_GUARD.repo]
    assert [row.status for row in report.rows] == ["PASS"] * 4, report
    assert f"revision {REVISION_1_0}" in report.rows[2].details


async def test_the_diffusers_guardrail_without_a_reviewed_revision_fails(hub: StubHub) -> None:
    report = await access("cosmos3", hub.environ(), engine="diffusers")
    assert [row.status for row in report.rows] == ["PASS", "PASS", "FAIL", "PASS"]


async def test_offline_asks_nobody(hub: StubHub) -> None:
    assert await statuses(hub, GOOD_TOKEN, offline=True) == ["PASS", *["SKIP"] * 5]
    report = await access("cosmos3", {**hub.environ(), "HF_HUB_OFFLINE": "1"})
    assert [row.status for row in report.rows] == ["PASS", *["SKIP"] * 5] and hub.asked == []


@pytest.mark.parametrize(("status", "expected"), [(500, "WARN"), (429, "WARN"), (404, "FAIL"), (403, "FAIL")])
async def test_other_answers(hub: StubHub, status: int, expected: str) -> None:
    hub.status = status
    assert await statuses(hub, GOOD_TOKEN) == ["PASS", *[expected] * 5]


async def test_a_login_page_proves_nothing(hub: StubHub) -> None:
    hub.login_page = True
    assert await statuses(hub, GOOD_TOKEN) == ["PASS", *["WARN"] * 5]


async def test_usage(hub: StubHub) -> None:
    with pytest.raises(UsageError, match="unknown capability"):
        await access("cosmos4", hub.environ())
    with pytest.raises(UsageError, match="unknown engine"):
        await access("cosmos3", hub.environ(), engine="vllm")
    with pytest.raises(UsageError, match="no commit"):
        await access("cosmos3", hub.environ() | {"COSMOS3_GUARDRAIL_REVISION": "main"}, engine="diffusers")
    with pytest.raises(UsageError):
        await access("cosmos3", hub.environ(), strict=True, warn_only=True)
    assert hub.asked == []
