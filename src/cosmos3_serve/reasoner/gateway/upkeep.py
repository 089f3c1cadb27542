"""Upkeep: what runs beside the questions. Follows the fleet, tells the table, probes the dead, sweeps the store."""

from __future__ import annotations

import asyncio

import structlog

from cosmos3_serve.reasoner.fleet.health import Probe
from cosmos3_serve.reasoner.fleet.member import HeldMedia
from cosmos3_serve.reasoner.gateway.canary import Canary
from cosmos3_serve.reasoner.gateway.front import NOTHING_HELD, Front
from cosmos3_serve.reasoner.gateway.held_media import ReplicaMedia
from cosmos3_serve.reasoner.gateway.upstream import Lost, Silent, Unreachable

log = structlog.get_logger(__name__)

TICK_S = 0.1
SWEEP_S = 60.0
PROBE_S = 4.0


class Upkeep:
    """Start it in the event loop that serves the front."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self.canary = Canary(front)
        self._capacity: HeldMedia | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._flushing: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._front.fleet.on_change(self.take_news)
        for loop in (self._tick(), self._sweep()):
            self._keep(asyncio.create_task(loop))

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.canary.close()

    def take_news(self) -> None:
        """The fleet as it is now: members and capacities. Called after every view."""
        front = self._front
        members = front.fleet.members()
        front.members = {member.ref: member for member in members}
        health = front.router.health
        health.sync(member.spec for member in members)
        self._take_capacity([member.held for member in members if member.url])
        for member in members:
            front.held.on_incarnation(member.ref)
        front.held.keep_only([member.replica_id for member in members])
        front.upstream.keep_only({member.url for member in members if member.url})
        self.canary.look()
        front.line.wake()

    def _take_capacity(self, held: list[HeldMedia]) -> None:
        """Every replica is started alike; where they differ, the smallest counts."""
        if not held:
            return
        least = HeldMedia(min(h.bytes for h in held), min(h.items for h in held))
        if self._front.held is NOTHING_HELD or least != self._capacity:
            self._capacity = least
            self._front.held = ReplicaMedia(max_bytes=max(1, least.bytes), max_items=max(1, least.items))

    # ---- loops ------------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            front, now = self._front, self._front.clock()
            if front.router.leases.due(now) and self._flushing is None:
                self._flushing = asyncio.create_task(self._flush())
                self._keep(self._flushing)
            for probe in front.router.health.take_probes(now):
                self._keep(asyncio.create_task(self._probe(probe)))
            front.line.wake()

    async def _flush(self) -> None:
        try:
            await self._front.router.leases.flush(self._front.clock())
        finally:
            self._flushing = None

    async def _probe(self, probe: Probe) -> None:
        front = self._front
        front.router.health.on_probe(probe.ref, await self._works(probe), front.clock())
        front.line.wake()

    async def _works(self, probe: Probe) -> bool | None:
        """None: no answer in time."""
        member = self._front.members.get(probe.ref)
        if member is None or not member.url:
            return False
        if probe.canary:
            return await self.canary.examine(member, self._front.router.health.rules.canary_timeout_s)
        try:
            status, _ = await self._front.upstream.get(member.url, "/health", PROBE_S)
        except Silent:
            return None
        except (Unreachable, Lost):
            return False
        return status == 200

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await self._front.gate.sweep()
            except Exception as error:
                log.warning("sweep_failed", exception=type(error).__name__)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("upkeep_failed", exc_info=error)
