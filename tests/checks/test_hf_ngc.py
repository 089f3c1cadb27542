"""`hf` and `ngc` against stubs: every answer has its row, and no secret is in any of them."""

import asyncio
from typing import Any

import pytest
from support.hub import GOOD_TOKEN, OTHER_TOKEN, StubHub
from support.registry import GOOD_KEY, UNENTITLED_KEY, StubRegistry

from cosmos3_serve.checks.hf import check_hf
from cosmos3_serve.checks.ngc import check_ngc
from cosmos3_serve.checks.preflight import preflight
from cosmos3_serve.checks.report import Row
from cosmos3_serve.errors import UsageError

NOWHERE = "http://127.0.0.1:9"


async def hf(hub: StubHub | None, token: str = GOOD_TOKEN, *, offline: bool = False, **environ: str) -> Row:
    named = {"HF_ENDPOINT": hub.endpoint if hub else NOWHERE, "HF_TOKEN": token} | environ
    return await check_hf(named, offline=offline, timeout_s=5)


async def ngc(registry: StubRegistry | None, key: str = GOOD_KEY, *, offline: bool = False, **environ: str) -> Row:
    named = {"NGC_AUTH_ENDPOINT": registry.endpoint if registry else NOWHERE, "NGC_API_KEY": key} | environ
    return await check_ngc(named, offline=offline, timeout_s=5)


# ---- hf ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [GOOD_TOKEN, OTHER_TOKEN])
async def test_a_known_token_passes_and_says_that_this_is_no_entitlement(hub: StubHub, token: str) -> None:
    row = await hf(hub, token)
    assert row.status == "PASS" and "health access" in row.details[0]
    assert "stub-account" not in str(row), "the account's name is nobody's business"
    assert hub.asked == [("GET", "/api/whoami-v2", f"Bearer {token}")]


async def test_a_refused_token_fails(hub: StubHub) -> None:
    row = await hf(hub, "hf_wrong_token_value")
    assert row.status == "FAIL" and "401" in row.summary and "HF_TOKEN" in row.remedy
    assert "hf_wrong_token_value" not in str(row)


@pytest.mark.parametrize("token", ["", "   "])
async def test_a_missing_token_fails_and_asks_nobody(hub: StubHub, token: str) -> None:
    row = await hf(hub, token)
    assert row.status == "FAIL" and "HF_TOKEN is not set" in row.summary and row.remedy
    assert hub.asked == []


@pytest.mark.parametrize("quiet", [{"offline": True}, {"HF_HUB_OFFLINE": "1"}])
async def test_offline_asks_nobody(hub: StubHub, quiet: dict[str, Any]) -> None:
    assert (await hf(hub, **quiet)).status == "SKIP" and hub.asked == []


@pytest.mark.parametrize("status", [500, 503, 404, 302])
async def test_an_unclear_answer_is_a_warning(hub: StubHub, status: int) -> None:
    hub.status = status
    row = await hf(hub)
    assert row.status == "WARN" and str(status) in row.summary


async def test_a_login_page_is_not_the_hub(hub: StubHub) -> None:
    hub.status = 200
    assert "not the Hub" in (await hf(hub)).summary


async def test_no_network_is_a_warning() -> None:
    row = await hf(None)
    assert row.status == "WARN" and "HF_ENDPOINT" in row.remedy


async def test_a_token_that_cannot_be_sent_is_no_traceback(hub: StubHub) -> None:
    row = await hf(hub, "hf_töken")
    assert row.status == "WARN" and "cannot be sent" in row.summary and "töken" not in str(row)


# ---- ngc -----------------------------------------------------------------------------------------------------------


async def test_a_key_that_is_exchanged_passes_for_identity_only(registry: StubRegistry) -> None:
    row = await ngc(registry)
    assert row.status == "PASS" and "identity only" in row.details[0]
    assert "stub-token" not in str(row) and GOOD_KEY not in str(row)
    assert registry.asked == [("/token", "repository:nvidia/cuda:pull", "$oauthtoken")]


async def test_a_missing_entitlement_is_no_failure_of_the_key(registry: StubRegistry) -> None:
    row = await ngc(registry, UNENTITLED_KEY)
    assert row.status == "PASS" and "402" in row.details[0] and "identity only" in row.details[0]


@pytest.mark.parametrize(
    ("key", "answer", "text"),
    [
        ("nvapi-wrong", None, "401"),
        ("nvapi_wrong", (403, b"{}"), "403"),
        (GOOD_KEY, (200, b"{}"), "no token"),
        (GOOD_KEY, (200, b"<html>"), "no token"),
        ("legacykey", None, "nvapi-"),
    ],
)
async def test_what_is_refused_fails(registry: StubRegistry, key: str, answer: Any, text: str) -> None:
    registry.answer = answer
    row = await ngc(registry, key)
    assert row.status == "FAIL" and text in row.summary and row.remedy and key not in str(row)
    assert bool(registry.asked) is (key != "legacykey"), "what is no key is not sent anywhere"


async def test_missing_offline_and_unreachable(registry: StubRegistry) -> None:
    assert (await ngc(registry, "")).status == "WARN"
    assert (await ngc(registry, "", NGC_CLI_API_KEY=GOOD_KEY)).status == "PASS"
    assert (await ngc(registry, offline=True)).status == "SKIP"
    assert (await ngc(None)).status == "WARN"
    registry.answer = (500, b"")
    assert (await ngc(registry)).status == "WARN"
    assert len(registry.asked) == 2


async def test_the_path_of_the_endpoint_is_kept(registry: StubRegistry) -> None:
    assert (await ngc(registry, NGC_AUTH_ENDPOINT=f"{registry.endpoint}/proxy_auth")).status == "PASS"
    assert registry.asked[0][0] == "/proxy_auth"


async def test_an_answer_without_end_is_cut(registry: StubRegistry) -> None:
    registry.delay_s = 3.0
    row = await check_ngc(
        {"NGC_AUTH_ENDPOINT": registry.endpoint, "NGC_API_KEY": GOOD_KEY}, offline=False, timeout_s=0.3
    )
    assert row.status == "WARN" and "0.3 s" in row.summary


# ---- both ----------------------------------------------------------------------------------------------------------


async def test_a_broken_endpoint_variable_fails_its_own_row_alone(registry: StubRegistry) -> None:
    environ = {"HF_TOKEN": "x", "HF_ENDPOINT": "ftp://x", "NGC_API_KEY": GOOD_KEY}
    with pytest.raises(UsageError):
        await check_hf(environ, offline=False, timeout_s=1)
    report = await preflight(("hf", "ngc"), environ | {"NGC_AUTH_ENDPOINT": registry.endpoint})
    assert [row.status for row in report.rows] == ["FAIL", "PASS"]


async def test_rows_are_asked_for_at_the_same_time(hub: StubHub, registry: StubRegistry) -> None:
    """The slow one is answered only after the other was asked: in turn, this would never end."""
    registry.delay_s = 0.2
    environ = {**hub.environ(), "NGC_API_KEY": GOOD_KEY, "NGC_AUTH_ENDPOINT": registry.endpoint}
    task = asyncio.create_task(preflight(("ngc", "hf"), environ))
    while not hub.asked:
        assert not task.done(), "the Hub was asked only after the registry had answered"
        await asyncio.sleep(0.005)
    assert [row.name for row in (await task).rows] == ["ngc", "hf"]
