"""What one bad request, one broken replica or a registry that hangs may not do to everybody else."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

from aiohttp import web
from support.gateway import CHAT, OTHER_TOKEN, soon, text, world
from support.stub_replica import StubReplica, dies, hangs, says

from cosmos3_serve.reasoner.fleet.core import FleetAway
from cosmos3_serve.reasoner.fleet.replicas import ReplicaState

QUEUE_FULL = says(503, "The request queue is full", "ServiceUnavailableError")


async def falls_silent(stub: StubReplica, request: web.Request, body: dict[str, Any]) -> None:
    """Say nothing, of a stream nothing more."""
    if body.get("stream"):
        answer = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await answer.prepare(request)
        await stub.event(answer, {"content": "half "})
    await hangs(stub, request, body)


BROKEN = says(500, "CUDA error: an illegal memory access", "InternalServerError")


async def test_a_request_that_a_full_engine_refused_stops_nobody_and_is_placed_when_that_is_over(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, replicas=1, queue_timeout_s=15) as here, here.client() as http:
        here.replicas[0].turns.append(QUEUE_FULL)
        refused = asyncio.create_task(http.post(CHAT, json=text("first")))
        await here.replicas[0].until(lambda: len(here.replicas[0].asked) == 1)
        told = await asyncio.gather(*(http.post(CHAT, json=text(f"q{i}")) for i in range(6)))
        assert {answer.status_code for answer in (await refused, *told)} == {200}
        assert here.front.router.counters.retries == 1


async def test_many_answers_for_one_client_leave_room_for_another(tmp_path: Path) -> None:
    async with world(tmp_path, slots=8, queue_timeout_s=15) as here, here.client() as http:
        for stub in here.replicas:
            stub.turns.append(QUEUE_FULL)
        wide = asyncio.create_task(http.post(CHAT, json=text("wide", n=40)))
        await soon(lambda: sum(len(stub.asked) for stub in here.replicas) == 2)
        async with here.client(OTHER_TOKEN) as other:
            told = await asyncio.gather(*(other.post(CHAT, json=text(f"q{i}")) for i in range(3)))
        assert {answer.status_code for answer in told} == {200}, "the replicas refused forty answers, not one"
        answer = await wide
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "fleet_saturated")


async def test_a_request_that_kills_an_engine_kills_one(tmp_path: Path) -> None:
    async def kills(stub: StubReplica, request: Any, body: dict[str, Any]) -> None:
        if body["messages"][0]["content"] == "killer":
            await dies(stub, request, body)
            await here.core.leave(here.places[stub.name])

    async with world(tmp_path, replicas=4, gateways=2) as here, here.client() as http:
        for stub in here.replicas:
            stub.turns += [kills] * 50
        first = await http.post(CHAT, json=text("killer", stream=True))
        assert (first.status_code, first.json()["error"]["code"]) == (503, "replica_lost_on_request")
        assert int(first.headers["retry-after"]) >= 5
        other = here.gateways[1].front.router.suspects
        await soon(lambda: other._held)
        async with here.client(OTHER_TOKEN) as elsewhere:
            elsewhere.base_url = here.gateways[1].url
            for client in (http, elsewhere, http):
                again = await client.post(CHAT, json=text("killer"))
                assert (again.status_code, again.json()["error"]["code"]) == (503, "request_suspected")
                assert (await client.post(CHAT, json=text("harmless"))).status_code == 200
        assert sum(not stub.healthy for stub in here.replicas) == 1


async def test_a_replica_that_fails_every_question_is_ejected_and_its_sessions_move(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=4) as here, here.client() as http:
        names = {}
        for i in range(8):
            answer = await http.post(CHAT, json=text(), headers={"X-Session-ID": f"s{i}"})
            names[f"s{i}"] = answer.headers["x-cosmos3-replica"]
        home = names["s0"]
        bad = here.by_name(home)
        bad.turns += [BROKEN] * 500
        failed = await http.post(CHAT, json=text(), headers={"X-Session-ID": "s0"})
        assert failed.status_code == 502
        assert bad.healthy, "its /health is green"
        router, clock = here.front.router, here.front.clock
        await soon(lambda: router.health.fleet(clock()).replicas[home].state is ReplicaState.DEAD)
        told: Counter[tuple[int, bool]] = Counter()
        for i in range(30):
            name = f"s{i % 8}" if i < 16 else f"new{i}"
            answer = await http.post(CHAT, json=text(), headers={"X-Session-ID": name})
            told[answer.status_code, answer.headers["x-cosmos3-replica"] == home] += 1
        assert told == {(200, False): 30}
        assert home in here.gateways[0].upkeep.canary.verdict()[1]
        bad.turns.clear()
        await soon(lambda: router.health.fleet(clock()).replicas[home].state is ReplicaState.READY)
        assert here.gateways[0].upkeep.canary.verdict()[0]


async def test_one_question_that_breaks_an_engine_s_code_ejects_nobody(tmp_path: Path) -> None:
    async with world(tmp_path) as here, here.client() as http:
        for stub in here.replicas:
            stub.turns.append(BROKEN)
        assert [(await http.post(CHAT, json=text())).status_code for _ in range(2)] == [502, 422]
        router, clock = here.front.router, here.front.clock
        await soon(lambda: not any(view.examined for view in router.health.fleet(clock()).replicas.values()))
        assert {view.state for view in router.health.fleet(clock()).replicas.values()} == {ReplicaState.READY}


async def test_a_registry_that_hangs_holds_up_one_call(tmp_path: Path) -> None:
    asked: Counter[str] = Counter()

    async def hangs(method: str, *_: Any, timeout_s: float) -> Any:
        asked[method] += 1
        await asyncio.sleep(timeout_s)
        raise FleetAway

    async with world(tmp_path) as here, here.client() as http:
        call, here.fleet.call = here.fleet.call, hangs  # type: ignore[method-assign]
        for i in range(8):
            answer = await http.post(CHAT, json=text(), headers={"X-Session-ID": f"new{i}"})
            assert (answer.status_code, answer.headers["x-cosmos3-session"]) == (200, "new")
        assert asked["acquire"] <= 1
        here.fleet.call = call  # type: ignore[method-assign]
        await soon(lambda: not here.front.router.leases.away(here.front.clock()))
        assert (await http.post(CHAT, json=text(), headers={"X-Session-ID": "after"})).status_code == 200


async def test_an_idle_engine_is_not_full_whatever_its_last_report_said(tmp_path: Path) -> None:
    async with world(tmp_path, gateways=2) as here:
        stub = here.replicas[0]
        stub.running = 60  # what its beats say from now on
        place = here.places[stub.name]
        await soon(lambda: any(load.running == 60 for load in here.front.fleet.loads().values()))
        for gateway in here.gateways:
            health, now = gateway.front.router.health, gateway.front.clock()
            assert (health.load(place, now), health.state(place, now)) == (0, ReplicaState.READY)


async def test_gateways_count_what_the_others_wait_for(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1, gateways=2, slots=8) as here, here.client() as http:
        here.replicas[0].gate.clear()
        place = here.places[here.replicas[0].name]
        asked = [asyncio.create_task(http.post(CHAT, json=text(f"q{i}", n=2))) for i in range(4)]
        other = here.gateways[1].front
        await soon(lambda: other.router.health.load(place, other.clock()) == 8)
        assert other.router.health.state(place, other.clock()) is ReplicaState.SATURATED
        here.replicas[0].gate.set()
        await asyncio.gather(*asked)
        await soon(lambda: other.router.health.state(place, other.clock()) is ReplicaState.READY)


async def test_questions_on_a_machine_that_is_gone_end_as_those_of_a_dead_replica(tmp_path: Path) -> None:
    """It closes no connection: the registry's word does."""
    async with world(tmp_path, replicas=2, slots=4, answer_timeout_s=300) as here, here.client() as http:
        here.core._roster._lost_after_s = 2.0
        session = {"X-Session-ID": "one"}
        assert (await http.post(CHAT, json=text("known"), headers=session)).status_code == 200
        (lost,) = [stub for stub in here.replicas if stub.asked]
        lost.turns += [falls_silent] * 3
        bodies = text("known"), text("unknown"), text("another", stream=True)
        asked = [asyncio.create_task(http.post(CHAT, json=body, headers=session)) for body in bodies]
        await soon(lambda: lost.running == 3)
        del here.places[lost.name]
        async with asyncio.timeout(20):
            known, unknown, begun = await asyncio.gather(*asked)
        assert known.status_code == 200, "it had been answered before: another replica answers it"
        assert here.front.router.counters.retries == 1
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (503, "replica_lost_on_request")
        assert begun.status_code == 200
        assert "half" in begun.text and '"replica_lost"' in begun.text
        await soon(lambda: lost.running == 0)
        assert here.front.answers == 0
