"""Gateway and replica sides of the fleet around the core, without Ray: away, restarted, watched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from cosmos3_serve.reasoner.engine.reporter import Reporter
from cosmos3_serve.reasoner.fleet.core import FleetCore, InProcessFleet
from cosmos3_serve.reasoner.fleet.member import GatewayStatus, HeldMedia, Load, Seen, Service
from cosmos3_serve.reasoner.fleet.replicas import Fleet, ReplicaRef, ReplicaState, ReplicaView
from cosmos3_serve.reasoner.fleet.view import FleetPort
from cosmos3_serve.reasoner.sessions.messages import Acquire, TableAway
from cosmos3_serve.reasoner.sessions.policy import AffinityRules, Outcome

RULES = AffinityRules()


async def until(true: Callable[[], bool], within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while True:
            if true():
                return
            await asyncio.sleep(0.01)


@asynccontextmanager
async def fleet_of(*ports: int) -> AsyncIterator[tuple[InProcessFleet, list[Reporter]]]:
    fleet = InProcessFleet(FleetCore(RULES, len(ports)))

    async def load() -> Load:
        return Load(2, 1)

    reporters = []
    for port in ports:
        reporter = Reporter(fleet, Service(f"http://127.0.0.1:{port}", 8, HeldMedia(1, 1)), load, beat_s=0.02)
        reporter.start()
        await until(lambda reporter=reporter: reporter.ref is not None)
        reporters.append(reporter)
    try:
        yield fleet, reporters
    finally:
        fleet.away = False
        for reporter in reporters:
            await reporter.leave()


@asynccontextmanager
async def port_of(fleet: InProcessFleet, status: Callable[[], GatewayStatus] | None = None) -> AsyncIterator[FleetPort]:
    port = FleetPort(fleet, "the-secret", status)
    await port.start()
    try:
        yield port
    finally:
        await port.stop()


async def test_a_gateway_sees_members_loads_and_changes() -> None:
    heard: list[int] = []
    async with fleet_of(1, 2) as (fleet, reporters), port_of(fleet) as port:
        port.on_change(lambda: heard.append(len(port.members())))
        await until(lambda: len(port.members()) == 2 and Load(2, 1) in port.loads().values())
        await reporters[0].drain()
        await until(lambda: port.members()[0].phase is ReplicaState.DRAINING)
        await reporters[0].leave()
        await until(lambda: port.members()[0].url == "")
        assert port.members()[0].phase is ReplicaState.STARTING
        assert heard


async def test_a_broken_callback_does_not_stop_the_watch() -> None:
    async with fleet_of(1) as (fleet, reporters), port_of(fleet) as port:
        port.on_change(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
        await until(lambda: len(port.members()) == 1)
        await reporters[0].leave()
        await until(lambda: port.members()[0].url == "")


async def test_while_the_actor_is_away_members_stand_and_the_table_says_so() -> None:
    async with fleet_of(1) as (fleet, _), port_of(fleet) as port:
        await until(lambda: len(port.members()) == 1)
        fleet.away = True
        await until(lambda: port.away)
        assert len(port.members()) == 1
        with pytest.raises(TableAway):
            await port.table.stats()
        fleet.away = False
        await until(lambda: not port.away)


async def test_a_restarted_actor_is_rebuilt_and_takes_no_member_away_meanwhile() -> None:
    async with fleet_of(1, 2) as (fleet, reporters), port_of(fleet) as port:
        await until(lambda: len(port.members()) == 2)
        before = {member.ref for member in port.members()}
        sizes: list[int] = []
        port.on_change(lambda: sizes.append(len(port.members())))
        fleet.core = FleetCore(RULES, 2, recovering=True)
        await until(lambda: len(sizes) > 0)
        view = await fleet.core.watch(Seen(), timeout_s=0)
        await until(lambda: port._seen.generation == view.seen.generation)
        await until(lambda: fleet.core._view().settled)
        assert {reporter.ref for reporter in reporters} == before, "each is back in its place, in the same life"
        assert {member.ref for member in port.members()} == before
        assert set(sizes) == {2}


async def test_the_table_is_reached_through_the_port() -> None:
    async with fleet_of(1) as (fleet, reporters), port_of(fleet) as port:
        ref = reporters[0].ref
        assert ref is not None
        view = Fleet({ref.id: ReplicaView(ref.incarnation, ReplicaState.READY)})
        grant = await port.table.acquire(Acquire("gw", 1, "key", 1, view))
        assert grant.replica == ref
        assert grant.outcome is Outcome.NEW
        assert (await port.table.stats()).sessions == 1


async def test_gateways_are_heard_and_told_that_the_service_ends() -> None:
    async with fleet_of(1) as (fleet, _), port_of(fleet, lambda: GatewayStatus("gw-1", port=8000, ready=True)) as port:
        await until(lambda: not port.away)
        overview = await fleet.core.overview()
        assert [(g.gateway, g.port, g.ready) for g in overview.gateways] == [("gw-1", 8000, True)]
        await fleet.core.end()
        await until(lambda: port.draining)


async def test_a_gateway_says_goodbye_and_its_end_does_not_wait_for_a_registry_that_is_away() -> None:
    async with fleet_of(1) as (fleet, _):
        async with port_of(fleet, lambda: GatewayStatus("gw-1")), port_of(fleet, lambda: GatewayStatus("gw-2")) as last:
            await until(lambda: not last.away)
            await until(lambda: len(fleet.core._roster.gateways(0)) == 2)
            await last.stop()
            assert [g.gateway for g in (await fleet.core.overview()).gateways] == ["gw-1"]
            fleet.away = True
        fleet.away = False
        assert [g.gateway for g in (await fleet.core.overview()).gateways] == ["gw-1"]


async def test_a_reporter_that_is_not_known_any_more_registers_again_with_its_claim() -> None:
    async with fleet_of(1) as (fleet, reporters):
        ref = reporters[0].ref
        fleet.core = FleetCore(RULES, 1, recovering=True)
        await until(lambda: bool(fleet.core._roster.view(0).members))
        assert fleet.core._roster.view(0).members[0].ref == ref == reporters[0].ref


async def test_an_engine_that_does_not_say_its_load_stays_a_member() -> None:
    fleet = InProcessFleet(FleetCore(RULES, 1))
    asked: list[bool] = []

    async def hang() -> Load:
        asked.append(True)
        await asyncio.Event().wait()
        return Load()

    reporter = Reporter(fleet, Service("http://127.0.0.1:1", 8, HeldMedia(1, 1)), hang, beat_s=0.02)
    reporter.start()
    await until(lambda: len(asked) > 3)
    heard = fleet.core._roster._slots["replica-0"].heard_at
    await until(lambda: fleet.core._roster._slots["replica-0"].heard_at > heard)
    await reporter.leave()


async def test_a_broken_status_or_load_ends_neither_side() -> None:
    broken = [True]

    async def load() -> Load:
        if broken:
            raise KeyError("broken")
        return Load(7, 7)

    def status() -> GatewayStatus:
        if broken:
            raise KeyError("broken")
        return GatewayStatus("gw")

    fleet = InProcessFleet(FleetCore(RULES, 1))
    reporter = Reporter(fleet, Service("http://127.0.0.1:1", 8, HeldMedia(1, 1)), load, beat_s=0.02)
    reporter.start()
    async with port_of(fleet, status) as port:
        await until(lambda: reporter.ref is not None)
        await asyncio.sleep(0.1)
        broken.clear()
        await until(lambda: Load(7, 7) in port.loads().values())
    await reporter.leave()


async def test_a_slow_actor_counts_as_away() -> None:
    class Slow(FleetCore):
        async def acquire(self, message: Acquire):  # type: ignore[no-untyped-def]
            await asyncio.Event().wait()

    port = FleetPort(InProcessFleet(Slow(RULES, 1)), "s")
    started = asyncio.get_running_loop().time()
    with pytest.raises(TableAway):
        await port.table.acquire(Acquire("gw", 1, "key", 1, Fleet()))
    assert asyncio.get_running_loop().time() - started < 5


def test_refs_travel() -> None:
    import pickle

    ref = ReplicaRef("replica-0", 5)
    assert pickle.loads(pickle.dumps({ref: Load(1, 2)})) == {ref: Load(1, 2)}


async def test_a_replica_waits_for_its_place_before_it_counts_as_running() -> None:
    """Serve ends an old one for it then, whose sessions must find it."""
    fleet = InProcessFleet(FleetCore(RULES, 1))

    async def load() -> Load | None:
        return Load()

    reporter = Reporter(fleet, Service("http://127.0.0.1:1", 8, HeldMedia(1, 1)), load, beat_s=0.02)
    assert not await reporter.seated(0.01)
    fleet.away = True
    reporter.start()
    assert not await reporter.seated(0.1), "nobody can say, and the replica serves all the same"
    fleet.away = False
    assert await reporter.seated(5)
    await reporter.leave()


async def test_replicas_that_go_together_are_known_together() -> None:
    """Else a session of the first would move to the second, and again when that one goes."""
    async with fleet_of(1, 2, 3) as (fleet, reporters), port_of(fleet) as port:
        await until(lambda: len(port.members()) == 3)
        await fleet.core.demand(1)
        first = asyncio.create_task(reporters[1].drain())
        await until(lambda: port.members()[1].leaving)
        assert port.members()[1].phase is ReplicaState.READY, "its sessions stay until all are known"
        await asyncio.gather(first, reporters[2].drain())
        await until(lambda: [m.phase for m in port.members()].count(ReplicaState.DRAINING) == 2)
        await reporters[0].drain()
        await until(lambda: port.members()[0].phase is ReplicaState.DRAINING)


async def test_one_that_goes_alone_does_not_wait_for_others() -> None:
    async with fleet_of(1, 2) as (fleet, reporters), port_of(fleet) as port:
        await until(lambda: len(port.members()) == 2)
        async with asyncio.timeout(10):
            await fleet.core.drain(reporters[0].ref)  # type: ignore[arg-type]
            await fleet.core.demand(0)
            slow = asyncio.create_task(fleet.core.drain(ReplicaRef("replica-9", 1)))
            await slow  # nobody else asks: it is let go all the same
        await until(lambda: port.members()[0].phase is ReplicaState.DRAINING)


async def test_the_first_view_is_waited_for() -> None:
    async with fleet_of(1) as (fleet, _):
        fleet.away = True
        async with port_of(fleet) as port:
            waits = asyncio.create_task(port.first_view())
            await asyncio.sleep(0.05)
            assert not waits.done()
            fleet.away = False
            async with asyncio.timeout(10):
                await waits
            assert len(port.members()) == 1


async def test_a_registry_that_starts_again_learns_who_leaves_who_drains_and_that_the_service_ends() -> None:
    async with fleet_of(1, 2, 3) as (fleet, reporters):
        refs = [reporter.ref for reporter in reporters]
        await fleet.core.renew()
        await fleet.core.drain(refs[1])  # type: ignore[arg-type]  # by a machine's own hook: the replica is not asked
        await until(lambda: reporters[1]._standing == (True, True) and reporters[2]._standing == (True, False))
        fleet.core = FleetCore(RULES, 3, recovering=True)
        async with port_of(fleet) as port:
            await until(lambda: len(port.members()) == 3)
            assert [member.ref for member in port.members()] == refs
            assert [member.leaving for member in port.members()] == [True] * 3
            phases = [member.phase for member in port.members()]
            assert phases == [ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.READY]


async def test_the_end_of_the_service_outlives_the_registry_that_was_told() -> None:
    fleet = InProcessFleet(FleetCore(RULES, 1, run="first"))
    ports: list[FleetPort] = []
    async with port_of(fleet, lambda: GatewayStatus("gw", ended=ports[0].ended if ports else None)) as port:
        ports.append(port)
        await fleet.core.end()
        await until(lambda: port.draining)
        fleet.core = FleetCore(RULES, 1, run="first", recovering=True)
        await until(lambda: fleet.core._roster.draining)
        # Another service of the same name, begun while gateways of the first still watch, is not ended by them.
        fleet.core = FleetCore(RULES, 1, run="second")
        await until(lambda: not port.draining)
        assert not fleet.core._roster.draining
