"""FleetPort: the fleet and the session table as one gateway sees them, whether or not their actor can be asked.

Members are watched: a change arrives within milliseconds, loads within a second. While the actor is away the last view
stands, and one that restarts and has not heard from everybody yet takes no member away: requests find out for
themselves who is dead. No call of a request waits longer than `ACQUIRE_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

import structlog

from cosmos3_serve.reasoner.fleet.core import FleetAway, FleetCalls
from cosmos3_serve.reasoner.fleet.member import FleetView, GatewayStatus, Load, Member, Seen
from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef
from cosmos3_serve.reasoner.sessions.messages import (
    Acquire,
    Flush,
    FlushReply,
    Grant,
    PageAsk,
    Peek,
    SessionPage,
    SessionView,
    TableAway,
    TableStats,
)
from cosmos3_serve.reasoner.setup import ReasonerSetup

log = structlog.get_logger(__name__)

ACQUIRE_S = 1.0
REPORT_S = 2.0
WATCH_S = 1.0
WATCH_GRACE_S = 5.0
RETRY_S = 0.5


class RemoteTable:
    """`SessionTablePort` over the fleet's actor."""

    def __init__(self, fleet: FleetCalls) -> None:
        self._fleet = fleet

    async def acquire(self, message: Acquire) -> Grant:
        try:
            grant: Grant = await self._fleet.call("acquire", message, timeout_s=ACQUIRE_S)
        except FleetAway:
            raise TableAway from None
        return grant

    async def flush(self, message: Flush) -> FlushReply:
        try:
            reply: FlushReply = await self._fleet.call("flush", message, timeout_s=REPORT_S)
        except FleetAway:
            raise TableAway from None
        return reply

    async def peek(self, message: Peek) -> SessionView:
        try:
            view: SessionView = await self._fleet.call("peek", message, timeout_s=ACQUIRE_S)
        except FleetAway:
            raise TableAway from None
        return view

    async def page(self, message: PageAsk) -> SessionPage:
        try:
            page: SessionPage = await self._fleet.call("page", message, timeout_s=ACQUIRE_S)
        except FleetAway:
            raise TableAway from None
        return page

    async def stats(self) -> TableStats:
        try:
            stats: TableStats = await self._fleet.call("stats", timeout_s=ACQUIRE_S)
        except FleetAway:
            raise TableAway from None
        return stats


class FleetPort:
    """
    Args:
        fleet: the actor.
        secret: what replicas ask for, in the header `SECRET_HEADER`, on every path.
        status: what this gateway says of itself; asked about once a second, in the event loop.
    """

    def __init__(self, fleet: FleetCalls, secret: str, status: Callable[[], GatewayStatus] | None = None) -> None:
        self.secret = secret
        self.table = RemoteTable(fleet)
        self._fleet, self._status = fleet, status
        self._members: dict[str, Member] = {}
        self._loads: dict[ReplicaRef, Load] = {}
        self._seen = Seen()
        self._callbacks: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None
        self.draining = False
        self.ended: str | None = None  # the run of the service whose end was told
        self.failing = False
        self.wanted = 0
        self.away = True  # until the first view
        self._viewed = asyncio.Event()

    @classmethod
    def connect(cls, setup: ReasonerSetup, status: Callable[[], GatewayStatus] | None = None) -> FleetPort:
        from cosmos3_serve.reasoner.registry import RayFleet

        return cls(RayFleet(setup.names.registry), setup.secret, status)

    def members(self) -> list[Member]:
        """Every replica, ordered by id; see `Member` for those that are away."""
        return [self._members[name] for name in sorted(self._members)]

    def loads(self) -> Mapping[ReplicaRef, Load]:
        return dict(self._loads)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Called in the event loop after every view: members, loads or `draining` may have changed."""
        self._callbacks.append(callback)

    async def start(self) -> None:
        self._task = asyncio.create_task(self._follow())

    async def first_view(self) -> None:
        """Wait until the fleet was seen once."""
        await self._viewed.wait()

    async def stop(self) -> None:
        """Watch no more, and say goodbye: a renewal waits until the old gateways have gone."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._status is not None:
            with contextlib.suppress(Exception):  # unheard, it is forgotten after some seconds of silence
                await self._fleet.call("gateway_left", self._status().gateway, timeout_s=REPORT_S)

    async def _follow(self) -> None:
        while True:
            try:
                status = self._status() if self._status is not None else None
                view = await self._fleet.call("watch", self._seen, status, WATCH_S, timeout_s=WATCH_S + WATCH_GRACE_S)
            except Exception as error:  # a gateway that stopped watching would route to the dead for ever
                if not self.away:
                    log.warning("fleet_registry_away", exception=type(error).__name__)
                self.away = True
                await asyncio.sleep(RETRY_S)
                continue
            self.away = False
            self._take(view)

    def _take(self, view: FleetView) -> None:
        told = {member.replica_id: member for member in view.members}
        if not view.settled:
            told = {**self._members, **told}
        self._members = told
        self._loads = dict(view.loads)
        self._seen, self.draining, self.failing = view.seen, view.draining, view.failing
        self.wanted = view.wanted
        self.ended = view.run if view.draining else self.ended
        for callback in self._callbacks:
            try:
                callback()
            except Exception as error:
                log.error("fleet_callback_failed", exc_info=error)
        self._viewed.set()
