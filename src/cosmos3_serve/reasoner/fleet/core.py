"""FleetCore: the roster and the session table under one roof, as the one actor holds them. Plain Python.

What it loses when its process dies comes back by itself: replicas register again in their old places, gateways report
their leases to the new table (see `roster` and `sessions`).
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from cosmos3_serve.reasoner.fleet.member import Demand, FleetView, GatewayStatus, Load, Member, Seen, Service, Standing
from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef, ReplicaState
from cosmos3_serve.reasoner.fleet.roster import Roster
from cosmos3_serve.reasoner.sessions.messages import (
    Acquire,
    Flush,
    FlushReply,
    Grant,
    PageAsk,
    Peek,
    SessionPage,
    SessionView,
    TableStats,
)
from cosmos3_serve.reasoner.sessions.policy import AffinityRules
from cosmos3_serve.reasoner.sessions.table import SessionTable

log = structlog.get_logger(__name__)

TOGETHER_S = 1.0  # replicas that go together ask within this time of one another
TOGETHER_STEP_S = 0.05
RECOVER_S = 5.0  # replicas and gateways report again within two of their seconds
MAX_WATCH_S = 30.0


class FleetAway(Exception):
    """The fleet's actor cannot be asked now (restarting, unreachable, too slow). Never leaves this package."""


@dataclass(frozen=True, slots=True)
class Overview:
    """For the service that waits for its fleet: who serves, who answers, and what could not start."""

    members: tuple[Member, ...]
    loads: Mapping[ReplicaRef, Load]
    gateways: tuple[GatewayStatus, ...]
    failures: Mapping[str, Mapping[str, str]]
    sessions: TableStats
    wanted: int


class FleetCalls(Protocol):
    """The fleet as other processes reach it. Every call is bounded in time and raises FleetAway."""

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any: ...


class FleetCore:
    """
    Args:
        wanted: replicas, until `demand` says otherwise.
        run: of the service; a core that replaces a lost one has the same.
        recovering: this core replaces one that was lost.
        clock: seconds, monotonic; `wall`: seconds since the epoch.
    """

    def __init__(
        self,
        rules: AffinityRules,
        wanted: int,
        *,
        run: str = "",
        recovering: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._clock, self._wall = clock, wall
        generation = uuid.uuid4().hex
        until = clock() + RECOVER_S if recovering else 0.0
        self._roster = Roster(generation, wanted, run=run, recover_until=until)
        self._table = SessionTable(rules, generation, recover_until=until)
        self._woken: set[asyncio.Future[None]] = set()

    # ---- the fleet --------------------------------------------------------------------------------------------------

    async def register(
        self, service: Service, claim: ReplicaRef | None = None, standing: Standing | None = None
    ) -> ReplicaRef | None:
        """See `Roster.register`."""
        place = self._roster.register(service, self._clock(), self._wall(), claim, standing)
        self._wake()
        return place

    async def beat(self, ref: ReplicaRef, load: Load) -> Standing | None:
        """See `Roster.beat`."""
        before = self._roster.version
        standing = self._roster.beat(ref, load, self._clock())
        self._sweep()
        if self._roster.version != before:
            self._wake()
        return standing

    async def drain(self, ref: ReplicaRef) -> None:
        """The replica takes nothing new. Where the fleet shrinks by several, all of them are known before the sessions
        of the first move, so that none moves to one that goes next."""
        self._roster.mark(ref)
        self._wake()
        until = self._clock() + TOGETHER_S
        while not self._roster.all_asked() and self._clock() < until:  # noqa: ASYNC110
            await asyncio.sleep(TOGETHER_STEP_S)
        self._roster.drain(ref)
        self._wake()

    async def demand(self, wanted: int | None = None) -> Demand:
        """The load that the fleet's size follows. `wanted`: the size that it is to have, where it scales."""
        if wanted is not None and wanted != self._roster.wanted:
            answers = self._roster.demand(self._clock()).answers
            log.info("fleet_scales", replicas=wanted, before=self._roster.wanted, answers=answers)
            self._roster.want(wanted)
            self._wake()
        self._sweep()
        return self._roster.demand(self._clock())

    async def leave(self, ref: ReplicaRef) -> None:
        """The replica ends. One that was not draining tells us that its engine died under it."""
        if self._roster.leave(ref, self._clock()) is ReplicaState.READY:
            self._table.on_engine_ended(ref)
        self._wake()

    async def failed(self, replica: str, failure: dict[str, str]) -> None:
        self._roster.failed(replica, failure)

    async def renew(self, yes: bool = True) -> tuple[ReplicaRef, ...]:
        """See `Roster.renew`."""
        refs = self._roster.renew(yes)
        self._wake()
        return refs

    async def end(self) -> None:
        """The whole service drains: gateways hear it with their next view."""
        self._roster.end()
        self._wake()

    async def ending(self) -> bool:
        """Whether the whole service drains."""
        return self._roster.draining

    async def watch(self, seen: Seen, status: GatewayStatus | None = None, timeout_s: float = 1.0) -> FleetView:
        """The fleet, at once if it is another than `seen`, else after `timeout_s` (loads change all the time)."""
        if status is not None:
            self._roster.hear(status, self._clock())
        self._sweep()
        if self._view().seen == seen and timeout_s > 0:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._woken.add(waiting)
            try:
                async with asyncio.timeout(min(timeout_s, MAX_WATCH_S)):
                    await waiting
            except TimeoutError:
                pass
            finally:
                self._woken.discard(waiting)
            self._sweep()
        return self._view()

    async def gateway_left(self, name: str) -> None:
        """See `Roster.gateway_left`."""
        self._roster.gateway_left(name)

    async def overview(self) -> Overview:
        self._sweep()
        view = self._view()
        gateways = tuple(self._roster.gateways(self._clock()))
        failures, stats = dict(self._roster.failures), self._table.stats()
        return Overview(view.members, view.loads, gateways, failures, stats, self._roster.wanted)

    # ---- the session table ------------------------------------------------------------------------------------------

    async def acquire(self, message: Acquire) -> Grant:
        return self._table.acquire(message, self._clock())

    async def flush(self, message: Flush) -> FlushReply:
        return self._table.flush(message, self._clock())

    async def peek(self, message: Peek) -> SessionView:
        return self._table.peek(message, self._clock())

    async def page(self, message: PageAsk) -> SessionPage:
        return self._table.page(message, self._clock())

    async def stats(self) -> TableStats:
        return self._table.stats()

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _view(self) -> FleetView:
        return self._roster.view(self._clock())

    def _sweep(self) -> None:
        before = self._roster.version
        self._roster.sweep(self._clock())
        if self._roster.version != before:
            self._wake()

    def _wake(self) -> None:
        for waiting in self._woken:
            if not waiting.done():
                waiting.set_result(None)


class InProcessFleet:
    """`FleetCalls` without Ray, for tests and trials: the same core, away on demand."""

    def __init__(self, core: FleetCore) -> None:
        self.core = core
        self.away = False

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        if self.away:
            raise FleetAway
        try:
            async with asyncio.timeout(timeout_s):
                answer = await getattr(self.core, method)(*args)
        except TimeoutError:
            raise FleetAway from None
        if self.away:
            raise FleetAway
        return answer
