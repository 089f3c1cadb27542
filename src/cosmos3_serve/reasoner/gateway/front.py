"""Front: everything that the gateway's routes stand on, put together once by whoever serves them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cosmos3_serve.errors import Draining
from cosmos3_serve.reasoner.fleet.member import Member
from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef, ReplicaState
from cosmos3_serve.reasoner.fleet.view import FleetPort
from cosmos3_serve.reasoner.gateway.body import BodyBudget
from cosmos3_serve.reasoner.gateway.carriers import Carriers
from cosmos3_serve.reasoner.gateway.failed_requests import FailedRequests
from cosmos3_serve.reasoner.gateway.held_media import ReplicaMedia
from cosmos3_serve.reasoner.gateway.line import WaitingLine
from cosmos3_serve.reasoner.gateway.metrics import ReasonerMetrics
from cosmos3_serve.reasoner.gateway.replica_figures import ReplicaFigures
from cosmos3_serve.reasoner.gateway.salts import TenantSalts
from cosmos3_serve.reasoner.gateway.upstream import Upstream
from cosmos3_serve.reasoner.media.gate import MediaGate
from cosmos3_serve.reasoner.media.limits import MediaLimits
from cosmos3_serve.reasoner.sessions.keys import SessionKeys
from cosmos3_serve.reasoner.sessions.router import Router
from cosmos3_serve.reasoner.setup import ReasonerSetup
from cosmos3_serve.service.readiness import Readiness
from cosmos3_serve.service.tokens import TokenBook
from cosmos3_serve.settings import ReasonerSettings

NOTHING_HELD = ReplicaMedia(max_bytes=1, max_items=1)


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass(slots=True)
class Front:
    """The parts, named.

    Attributes:
        held: what each replica is believed to hold; knows nothing until the first replica has said how much it can.
        members: the fleet by place, as of the last news.
        system: fills `GET /system-info`.
        closing: the gateway takes nothing new.
        in_flight: questions that are being answered or wait; `idle` is set while there are none.
        over: the time to drain has passed, and what was in flight was cut.
    """

    setup: ReasonerSetup
    book: TokenBook
    fleet: FleetPort
    router: Router
    keys: SessionKeys
    salts: TenantSalts
    gate: MediaGate
    limits: MediaLimits
    line: WaitingLine
    upstream: Upstream
    metrics: ReasonerMetrics
    replica_figures: ReplicaFigures
    readiness: Readiness
    system: Callable[[], Awaitable[Mapping[str, Any]]]
    clock: Callable[[], float] = time.monotonic
    budget: BodyBudget = field(default_factory=BodyBudget)
    held: ReplicaMedia = NOTHING_HELD
    carriers: Carriers = field(default_factory=Carriers)
    failed: FailedRequests = field(default_factory=FailedRequests)
    members: dict[ReplicaRef, Member] = field(default_factory=dict)
    closing: bool = False
    in_flight: int = 0
    over: bool = False
    _running: set[asyncio.Task[Any]] = field(default_factory=set)
    idle: asyncio.Event = field(default_factory=_set_event)

    def begin(self) -> None:
        """One more question, answered by the current task; `end` must follow."""
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        self.in_flight += 1
        self.idle.clear()

    def end(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.discard(task)
        self.in_flight -= 1
        if not self.in_flight:
            self.idle.set()

    def cut(self) -> None:
        """The time to drain is over: whoever still waits is told so, before engines end under their answers."""
        self.over = True
        for task in self._running:
            task.cancel()

    @property
    def answers(self) -> int:
        """That are waited for here, or that the questions in line will ask for."""
        return sum(self.router.health.in_flight().values()) + self.line.answers

    @property
    def asked_s(self) -> float:
        """Seconds since a question wanted a replica; infinite if none ever did."""
        return self.clock() - self.router.asked_at

    @property
    def settings(self) -> ReasonerSettings:
        return self.setup.settings

    def check_open(self) -> None:
        """
        Raises:
            Draining: nothing new is taken.
        """
        if self.closing or self.fleet.draining:
            raise Draining("the service is ending", remedy="send it again to another gateway", retry_after_s=5)

    def url_of(self, ref: ReplicaRef) -> str:
        """Where this life of a replica answers; empty when it is gone."""
        member = self.members.get(ref)
        return member.url if member is not None else ""

    def ready_members(self) -> list[Member]:
        """Replicas that serve, as the control plane says."""
        return [m for m in self.members.values() if m.phase is ReplicaState.READY and m.url]
