"""The list of sessions: the fleet's table, the same from every gateway, a tenant's own, page by page."""

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.gateway import CHAT, OTHER_TOKEN, TOKEN, World, soon, text, world

LIST = "/v1/sessions"


def at(here: World, gateway: int, token: str = TOKEN) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.AsyncClient(base_url=here.gateways[gateway].url, headers=headers, timeout=30, trust_env=False)


async def ask(http: httpx.AsyncClient, session: str) -> str:
    told = await http.post(CHAT, json=text(), headers={"X-Session-ID": session})
    assert told.status_code == 200, told.text
    return told.headers["x-cosmos3-replica"]


async def settled(here: World) -> None:
    """Until the table has heard that every request is over."""
    await soon(lambda: not here.core._table.stats().live)


async def test_two_gateways_list_what_was_asked_of_either(tmp_path: Path) -> None:
    async with world(tmp_path, gateways=2) as here, at(here, 0) as one, at(here, 1) as two:
        homes = [await ask(one, "name-1"), await ask(two, "name-2"), await ask(one, "name-3")]
        await settled(here)
        lists: list[Any] = [(await http.get(LIST)).json() for http in (one, two)]
        assert len(lists[0]["data"]) == 3
        ages = [[row.pop("idle_s") + row.pop("expires_in_s") for row in told["data"]] for told in lists]
        assert all(abs(sum_s - here.settings.session_ttl_s) < 0.01 for row in ages for sum_s in row)
        assert lists[0] == lists[1]
        assert sorted(row["replica"] for row in lists[0]["data"]) == sorted(homes)
        assert {(row["state"], row["in_flight"]) for row in lists[0]["data"]} == {("bound", 0)}
        assert "name-" not in json.dumps(lists)
        explained = (await two.get(f"{LIST}/explain", params={"key": "name-1"})).json()
        assert explained["key"] in [row["id"] for row in lists[0]["data"]]


async def test_a_tenant_sees_its_own_sessions_only(tmp_path: Path) -> None:
    async with world(tmp_path) as here, at(here, 0) as one, at(here, 0, OTHER_TOKEN) as two:
        for session in ("a", "b"):
            await ask(one, session)
        await ask(two, "a")
        await settled(here)
        mine, theirs = (await one.get(LIST)).json(), (await two.get(LIST)).json()
        ids = [{row["id"] for row in told["data"]} for told in (mine, theirs)]
        assert [len(found) for found in ids] == [2, 1]
        assert not ids[0] & ids[1]
        # A cursor that another tenant was given opens nothing.
        for cursor in (*ids[0], "0", "f" * 48):
            shown = (await two.get(LIST, params={"after": cursor})).json()["data"]
            assert {row["id"] for row in shown} <= ids[1]


async def test_a_session_that_expires_is_counted_on_every_gateway(tmp_path: Path) -> None:
    async with world(tmp_path, gateways=2, session_ttl_s=5) as here, at(here, 0) as one, at(here, 1) as two:
        home = await ask(one, "short-lived")
        await settled(here)
        for http in (one, two):
            assert await expired(http) == {}
        # Later than the session lives, sooner than a replica counts as silent.
        here.core._clock = lambda: time.monotonic() + 6
        await soon(lambda: here.core._table.stats().expired)
        for http in (one, two):
            await soon(lambda: all(g.front.router.leases.expired for g in here.gateways))
            assert await expired(http) == {home: 1.0}


async def expired(http: httpx.AsyncClient) -> dict[str, float]:
    """Replica -> sessions of it that a scrape shows as expired, zeros left out."""
    families = text_string_to_metric_families((await http.get("/metrics")).text)
    rows = [row for family in families for row in family.samples if row.name == "cosmos3_reasoner_sessions_total"]
    return {r.labels["replica"]: r.value for r in rows if r.labels["outcome"] == "expired" and r.value}


async def test_pages_follow_each_other_by_their_cursor(tmp_path: Path) -> None:
    async with world(tmp_path) as here, here.client() as http:
        for number in range(7):
            await ask(http, f"session-{number}")
        await settled(here)
        found, params = [], {"limit": "3"}
        for length, more in ((3, True), (3, True), (1, False)):
            page = (await http.get(LIST, params=params)).json()
            assert (len(page["data"]), page["has_more"]) == (length, more)
            assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
            found += [row["id"] for row in page["data"]]
            params["after"] = page["last_id"]
        assert len(set(found)) == 7
        assert found == sorted(found)
        end = (await http.get(LIST, params=params)).json()
        assert (end["data"], end["has_more"], end["last_id"]) == ([], False, None)


@pytest.mark.parametrize(
    "params",
    [{"limit": "0"}, {"limit": "1001"}, {"limit": "-1"}, {"limit": "x"}, {"limit": "9" * 30}, {"limit": ""},
     {"limit": "\u0663"}, {"after": "my-session"}, {"after": "A" * 48}, {"after": "0" * 65}],
)  # fmt: skip
async def test_a_page_that_cannot_be_is_refused_by_name(tmp_path: Path, params: dict[str, str]) -> None:
    async with world(tmp_path, replicas=1) as here, here.client() as http:
        told = await http.get(LIST, params=params)
        assert (told.status_code, told.json()["error"]["code"]) == (400, "invalid_request")
        assert told.json()["error"]["param"] == next(iter(params))


async def test_without_the_table_there_is_no_list_rather_than_half_of_one(tmp_path: Path) -> None:
    async with world(tmp_path) as here, here.client() as http:
        await ask(http, "known-here")
        here.fleet.away = True
        told = await http.get(LIST)
        assert (told.status_code, told.json()["error"]["code"]) == (503, "session_table_away")
        assert int(told.headers["retry-after"]) >= 1
        assert (await http.post(CHAT, json=text(), headers={"X-Session-ID": "known-here"})).status_code == 200
        here.fleet.away = False
        assert len((await http.get(LIST)).json()["data"]) == 1


async def test_round_robin_has_no_sessions_and_asks_no_table(tmp_path: Path) -> None:
    async with world(tmp_path, routing="round-robin") as here, here.client() as http:
        await ask(http, "ignored")
        here.fleet.away = True
        told = (await http.get(LIST)).json()
        assert (told["data"], told["has_more"], told["table"], told["profile"]) == ([], False, None, "round-robin")
