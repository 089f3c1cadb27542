"""A fleet of two real vLLM servers on real Ray: places, secrets, deaths. One fleet for all tests, in this order."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import httpx
import psutil
import pytest
from support.fleet import PlainFleet, skip_without_engine, until
from support.processes import left_after
from support.service import shared_cache

from cosmos3_serve.reasoner.setup import MODEL_NAME, SECRET_HEADER

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

REPLACED_S = 400.0  # a vLLM server takes a minute of CPU to start


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainFleet]:
    skip_without_engine()
    with PlainFleet(shared_cache(tmp_path_factory), COSMOS3_REASONER_WORKERS="2") as running:
        yield running


def ready(fleet: PlainFleet) -> list[dict[str, object]]:
    return [member for member in fleet.members() if member["phase"] == "ready"]


def test_both_replicas_serve_in_places_of_their_own(fleet: PlainFleet) -> None:
    members = fleet.members()
    assert [m["id"] for m in members] == ["replica-0", "replica-1"]
    assert {m["phase"] for m in members} == {"ready"}
    assert len({m["url"] for m in members}) == 2
    assert all(m["held"][0] > 0 for m in members)
    assert fleet.ready["weights"] == "random"
    until(lambda: all(m["load"] == [0, 0] for m in fleet.members()), 10)


def test_every_path_of_a_replica_demands_the_secret(fleet: PlainFleet) -> None:
    secret = fleet.get("/fleet")["secret"]
    for member in fleet.members():
        with httpx.Client(base_url=member["url"], timeout=30) as http:
            for path in (
                "/health",
                "/metrics",
                "/docs",
                "/openapi.json",
                "/load",
                "/version",
                "/v1/models",
                "/ping",
                "/no",
            ):
                for headers in ({}, {SECRET_HEADER: "wrong"}, {"Authorization": f"Bearer {secret}"}):
                    assert http.get(path, headers=headers).status_code == 401, path
            assert http.post("/v1/chat/completions", json={}).status_code == 401
            assert http.get("/health", headers={SECRET_HEADER: secret}).status_code == 200
            assert http.get("/metrics", headers={SECRET_HEADER: secret}).status_code == 200


def test_a_replica_answers_a_question_with_the_secret(fleet: PlainFleet) -> None:
    secret = fleet.get("/fleet")["secret"]
    body = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    for member in fleet.members():
        answer = httpx.post(
            f"{member['url']}/v1/chat/completions", json=body, headers={SECRET_HEADER: secret}, timeout=120
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] >= 1


def test_replicas_listen_on_loopback_only(fleet: PlainFleet) -> None:
    pids = [m["engine"]["engine_pid"] for m in fleet.members()]
    addresses = {
        c.laddr.ip for pid in pids for c in psutil.Process(pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN
    }
    assert addresses == {"127.0.0.1"}


def test_sessions_spread_and_stay(fleet: PlainFleet) -> None:
    first = {key: fleet.get(f"/choose/{key}") for key in "abcd"}
    assert {found["outcome"] for found in first.values()} == {"new"}
    assert sorted(found["replica"] for found in first.values()) == ["replica-0"] * 2 + ["replica-1"] * 2
    for key, found in first.items():
        assert fleet.get(f"/choose/{key}") == {"replica": found["replica"], "outcome": "hit", "attempt": 1}


def test_the_registry_is_killed_and_comes_back_with_everything(fleet: PlainFleet) -> None:
    before = {m["id"]: m["incarnation"] for m in fleet.members()}
    homes = {key: fleet.get(f"/choose/{key}")["replica"] for key in "abcd"}
    generation = fleet.get("/table")["generation"]
    fleet.process("ray::FleetActor").send_signal(signal.SIGKILL)
    for key in "abcd":
        found = fleet.get(f"/choose/{key}")
        assert (found["replica"], found["outcome"]) == (homes[key], "hit"), "while it is away too"
    assert len(fleet.members()) == 2
    assert fleet.get("/choose/while-away").get("replica") in before
    until(lambda: not fleet.get("/fleet")["away"] and fleet.get("/table")["generation"] != generation, 60)
    until(lambda: fleet.get("/table")["sessions"] >= 5, 20)
    assert {m["id"]: m["incarnation"] for m in ready(fleet)} == before, "the same lives in the same places"
    assert {key: fleet.get(f"/choose/{key}")["replica"] for key in "abcd"} == homes


def test_a_killed_engine_is_replaced_in_its_place_and_its_sessions_move(fleet: PlainFleet) -> None:
    victim, other = fleet.members()
    mine = next(key for key in "abcd" if fleet.get(f"/choose/{key}")["replica"] == victim["id"])
    os.kill(victim["engine"]["engine_pid"], signal.SIGKILL)
    moved = fleet.get(f"/choose/{mine}")
    assert (moved["replica"], moved["outcome"]) == (other["id"], "moved")
    until(lambda: [m["id"] for m in ready(fleet)] == [other["id"]], 20)
    until(lambda: len(ready(fleet)) == 2, REPLACED_S)
    back = next(m for m in fleet.members() if m["id"] == victim["id"])
    assert back["incarnation"] > victim["incarnation"]
    assert back["url"] != victim["url"]
    assert back["pid"] != victim["pid"], "Serve has replaced the replica"
    assert fleet.get(f"/choose/{mine}")["replica"] == other["id"], "one that joins moves nothing"


def test_nothing_is_left_when_the_service_is_killed(fleet: PlainFleet) -> None:
    assert fleet.members()
    fleet.kill()
    assert left_after(fleet.mark, 30.0) == {}
