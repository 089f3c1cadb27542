"""Tenants' caches: nothing of one tenant's requests shows in another's."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.gateway import CHAT, OTHER_TOKEN, TOKEN, about, data_url, text, video, world

from cosmos3_serve.reasoner.gateway.salts import TenantSalts

SECRET = b"s" * 32


def test_salts_differ_by_tenant_and_by_secret() -> None:
    salts = TenantSalts(SECRET)
    assert salts.prompt("a") == TenantSalts(SECRET).prompt("a"), "gateways agree"
    assert len({salts.prompt("a"), salts.prompt("b"), TenantSalts(b"t" * 32).prompt("a")}) == 3
    assert len({salts.media("a", "u"), salts.media("b", "u"), salts.media("a", "v"), "u"}) == 4
    assert len(salts.media("a", "u")) == 64


def test_an_operator_may_let_tenants_share() -> None:
    salts = TenantSalts(SECRET, shared=True)
    assert salts.prompt("a") is None
    assert salts.media("a", "u") == salts.media("b", "u") == "u"
    body = {"cache_salt": "a client's"}
    salts.apply(body, "a")
    assert body == {}


@pytest.mark.parametrize("shared", [False, True])
async def test_what_two_tenants_send_and_see(tmp_path: Path, shared: bool) -> None:
    """Two gateways, two tenants, one replica: the same words and the same video."""
    async with world(tmp_path, replicas=1, gateways=2, share_caches=shared) as here:
        told: dict[str, list[str]] = {TOKEN: [], OTHER_TOKEN: []}
        for token in (TOKEN, OTHER_TOKEN):
            for gateway in here.gateways:
                async with here.client(token) as http:
                    url = f"{gateway.url}{CHAT}"
                    assert (await http.post(url, json=text("secret", cache_salt="guessed"))).status_code == 200
                    answer = await http.post(url, json=about(data_url(video()), "what?"))
                    told[token].append(answer.headers["x-cosmos3-media"])
        asked = here.replicas[0].asked
        salts = [body.get("cache_salt") for body in asked if body["messages"][0]["content"] == "secret"]
        uuids = [body["messages"][0]["content"][0]["uuid"] for body in asked if "uuid" in str(body)]
    assert told[TOKEN][0] == "miss"
    if shared:
        assert salts == [None] * 4 and len(set(uuids)) == 1
        assert told[OTHER_TOKEN] == ["hit", "hit"]
    else:
        assert salts[0] == salts[1] and salts[2] == salts[3] and salts[0] != salts[2]
        assert "guessed" not in salts and None not in salts
        assert len(set(uuids)) == 2
        assert told[OTHER_TOKEN][0] == "miss", "another tenant's question about this video leaves no trace"
