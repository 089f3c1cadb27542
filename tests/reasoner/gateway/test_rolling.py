"""A rolling restart seen from the gateway, in one process: the real gateway, registry and table over stub replicas."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from support.gateway import CHAT, World, soon, text, world
from support.stub_replica import StubReplica

from cosmos3_serve.reasoner.gateway import deployment
from cosmos3_serve.reasoner.gateway.deployment import ReasonerGateway

SESSIONS = [f"s{number}" for number in range(8)]


class Load:
    """Sessions that ask all the time, and what they were told."""

    def __init__(self, here: World) -> None:
        self.here = here
        self.outcomes: dict[str, list[str]] = {name: [] for name in SESSIONS}
        self.statuses: Counter[int] = Counter()
        self.stopped = False

    async def run(self, session: str) -> None:
        async with self.here.client() as http:
            while not self.stopped:
                try:
                    told = await http.post(CHAT, json=text(), headers={"X-Session-ID": session})
                except httpx.HTTPError:
                    self.statuses[0] += 1
                    continue
                self.statuses[told.status_code] += 1
                self.outcomes[session].append(told.headers.get("x-cosmos3-session", ""))
                await asyncio.sleep(0.005)

    def moves(self) -> dict[str, int]:
        return {name: found.count("moved") for name, found in self.outcomes.items()}


@asynccontextmanager
async def under_load(here: World) -> AsyncIterator[Load]:
    load = Load(here)
    tasks = [asyncio.create_task(load.run(name)) for name in SESSIONS]
    await soon(lambda: all(load.outcomes.values()))
    try:
        yield load
        seen = {name: len(found) for name, found in load.outcomes.items()}
        await soon(lambda: all(len(load.outcomes[name]) > seen[name] + 2 for name in SESSIONS))
    finally:
        load.stopped = True
        await asyncio.gather(*tasks)


async def end(here: World, stub: StubReplica) -> None:
    """As a replica leaves: nothing new, its answers end, then it is gone."""
    place = here.places.pop(stub.name)
    await here.core.drain(place)
    await soon(lambda: here.front.router.health.state(place, here.front.clock()) != "ready")
    await soon(lambda: stub.running == 0)
    await here.core.leave(place)
    await stub.stop()


async def test_each_session_moves_once_and_nothing_fails(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=2) as here:
        old = list(here.replicas)
        async with under_load(here) as load:
            await here.core.renew()
            for stub in old:
                await here.add_replica()
                await here.seen()
                await end(here, stub)
        assert set(load.statuses) == {200}
        assert load.moves() == dict.fromkeys(SESSIONS, 1)
        assert len(here.core._roster.view(0.0).members) == 2, "the places of the old ones are forgotten"


async def test_without_room_for_a_fresh_one_nothing_fails_either(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=2) as here:
        old = list(here.replicas)
        async with under_load(here) as load:
            await here.core.renew()
            for stub in old:
                await end(here, stub)
                await here.add_replica()
                await here.seen()
        assert set(load.statuses) == {200}
        assert set(load.moves().values()) == {1, 2}, "the first one's sessions had to settle on one that went later"


async def test_a_long_answer_survives_the_end_of_its_replica(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=2) as here, here.client() as http:
        for stub in here.replicas:
            stub.gate.clear()
        asking = asyncio.create_task(http.post(CHAT, json=text(stream=True), headers={"X-Session-ID": "long"}))
        await soon(lambda: sum(stub.running for stub in here.replicas) == 1)
        home = next(stub for stub in here.replicas if stub.running)
        await here.core.renew()
        await here.add_replica()
        ending = asyncio.create_task(end(here, home))
        await asyncio.sleep(0.3)
        assert not asking.done()
        home.gate.set()
        told = await asking
        await ending
        assert told.status_code == 200
        assert told.text.rstrip().endswith("[DONE]")
        assert "error" not in told.text
        again = await http.post(CHAT, json=text(), headers={"X-Session-ID": "long"})
        assert again.headers["x-cosmos3-session"] == "moved"


@pytest.mark.parametrize("yes", [True, False])
async def test_what_was_marked_can_be_unmarked(tmp_path: Path, yes: bool) -> None:
    async with world(tmp_path, replicas=2) as here, here.client() as http:
        await here.core.renew()
        await here.add_replica()
        await here.seen()
        if not yes:
            await here.core.renew(False)
        marks = [yes, yes, False]
        await soon(lambda: [m.leaving for m in here.front.fleet.members()] == marks)
        homes = set()
        for name in SESSIONS:
            told = await http.post(CHAT, json=text(), headers={"X-Session-ID": name})
            homes.add(told.headers["x-cosmos3-replica"])
        assert homes == ({"replica-2"} if yes else {"replica-0", "replica-1", "replica-2"})


def deployed(here: World, **changes: Any) -> SimpleNamespace:
    """The parts that Serve's replica of a gateway holds, without Serve."""
    gateway = here.gateways[0]
    setup = SimpleNamespace(settings=here.settings)
    parts = {"_server": gateway.server, "_front": gateway.front, "_fleet": gateway.front.fleet, "_setup": setup}
    made = SimpleNamespace(**parts, _upkeep=gateway.upkeep, _tasks=[], _stopped=False, **changes)
    made._leave = partial(ReasonerGateway._leave, made)
    return made


async def test_a_gateway_that_serve_ends_answers_what_it_has_and_closes_its_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployment, "LINGER_S", 0.2)
    async with world(tmp_path, replicas=1, drain_timeout_s=20) as here, here.client() as http, here.client() as other:
        (stub,) = here.replicas
        assert (await other.post(CHAT, json=text())).status_code == 200  # its connection stays open, idle
        stub.gate.clear()
        asking = asyncio.create_task(http.post(CHAT, json=text(stream=True)))
        await soon(lambda: stub.running == 1)
        ending = asyncio.create_task(ReasonerGateway.__del__(deployed(here)))
        await asyncio.sleep(0.05)
        stub.gate.set()
        late = await other.post(CHAT, json=text())
        assert (late.status_code, late.headers["connection"]) == (200, "close"), "no 503 while others serve"
        told = await asking
        assert told.status_code == 200
        assert told.text.rstrip().endswith("[DONE]")
        async with asyncio.timeout(15):
            await ending
        with pytest.raises(httpx.ConnectError):
            await http.get("/health")


async def test_a_gateway_of_a_service_that_ends_does_not_wait_a_second_time(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1, drain_timeout_s=600) as here, here.client() as http:
        (stub,) = here.replicas
        stub.gate.clear()
        asking = asyncio.create_task(http.post(CHAT, json=text()))
        await soon(lambda: stub.running == 1)
        await here.core.end()
        await soon(lambda: here.front.fleet.draining)
        refused = await http.post(CHAT, json=text())
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        async with asyncio.timeout(20):
            await ReasonerGateway.__del__(deployed(here))
        stub.gate.set()
        await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.parametrize(
    ("gateways", "replicas", "ok"),
    [
        ("RUNNING", "RUNNING", True),
        ("RUNNING", "DEPLOYING", True),
        ("RUNNING", "UNHEALTHY", True),
        ("DEPLOYING", "RUNNING", True),
        ("DEPLOYING", "DEPLOYING", False),
        ("RUNNING", "missing", False),
        ("UNHEALTHY", "RUNNING", False),
        ("DEPLOY_FAILED", "RUNNING", False),
    ],
)
def test_a_renewal_does_not_make_a_gateway_unready(gateways: str, replicas: str, ok: bool) -> None:
    assert deployment.serve_verdict(gateways, replicas)[0] is ok


async def test_a_gateway_that_never_began_has_nothing_to_end() -> None:
    await ReasonerGateway.__del__(SimpleNamespace())
