"""Renewal: every replica, then every gateway, is replaced by a fresh one while the others serve. Asked for by SIGUSR1.

Where there is room for one more replica, Serve starts the fresh one before it ends an old one, and sessions settle on
fresh replicas only, so that each moves once. Without room an old one goes first, and its sessions, which can only
settle on others that go later, move again. Each old one drains before it ends. A renewal that does not get on is given
up: what serves then goes on, and Serve goes on trying.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

import structlog

from cosmos3_serve.reasoner.fleet.core import Overview
from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef, ReplicaState
from cosmos3_serve.reasoner.fleet.scaling import gateways_for
from cosmos3_serve.settings import ReasonerSettings

log = structlog.get_logger(__name__)

MARGIN_S = 120.0


class Phase(StrEnum):
    IDLE = "idle"
    REPLICAS = "replicas"
    GATEWAYS = "gateways"


class Control(Protocol):
    """What a renewal does to the cluster; every call is bounded in time and may raise."""

    def mark(self, yes: bool) -> tuple[ReplicaRef, ...]:
        """Sessions no longer settle on whoever serves now (or do again); who that is."""

    def overview(self) -> Overview: ...

    def room(self) -> bool:
        """Whether one more replica would find a place."""

    def replicas(self, *, surge: bool) -> None:
        """Deploy them anew, one after another; `surge`: the fresh one first."""

    def gateways(self) -> None:
        """The same for gateways, the fresh one first: they share a port."""


class Renewal:
    """A machine that is stepped every second or two; a step blocks for no longer than the calls of its control."""

    def __init__(
        self, settings: ReasonerSettings, control: Control, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings, self._control, self._clock = settings, control, clock
        self._asked = False
        self.phase = Phase.IDLE
        self._old: frozenset[object] = frozenset()
        self._shown: tuple[int, int] | None = None
        self._since = 0.0

    def ask(self) -> None:
        """From a signal handler: begin at the next step. What is under way is not begun anew."""
        self._asked = True

    def step(self) -> None:
        """Begin if asked, else see how far it is. Raises nothing: what fails is tried again at the next step."""
        try:
            if self.phase is Phase.REPLICAS:
                self._see_replicas()
            elif self.phase is Phase.GATEWAYS:
                self._see_gateways()
            elif self._asked:
                self._begin()
            self._asked = False
        except Exception as error:
            log.warning("renewal_step_failed", exception=type(error).__name__)
        if self.phase is not Phase.IDLE and self._clock() - self._since > self._patience():
            self._give_up()

    def _begin(self) -> None:
        surge = self._control.room()
        self._old = frozenset(self._control.mark(True))
        log.info("renewal_begins", replicas=len(self._old), fresh_first=surge)
        self._control.replicas(surge=surge)
        self._enter(Phase.REPLICAS)

    def _see_replicas(self) -> None:
        overview = self._control.overview()
        members = [m for m in overview.members if m.url]
        fresh = sum(m.phase is ReplicaState.READY and m.ref not in self._old for m in members)
        left = sum(m.ref in self._old for m in members)
        self._show(fresh, left)
        if left or fresh < min(overview.wanted, len(self._old)):
            return
        old = frozenset(g.gateway for g in overview.gateways)
        self._control.gateways()
        self._old = old
        self._enter(Phase.GATEWAYS)

    def _see_gateways(self) -> None:
        overview = self._control.overview()
        gateways = overview.gateways
        fresh = sum(g.ready and g.gateway not in self._old for g in gateways)
        left = sum(g.gateway in self._old for g in gateways)
        self._show(fresh, left)
        due = gateways_for(self._settings.gateways, self._settings.workers, overview.wanted)
        if not left and fresh >= due:
            self.phase = Phase.IDLE
            log.info("renewed")

    def _enter(self, phase: Phase) -> None:
        self.phase, self._shown, self._since = phase, None, self._clock()

    def _show(self, fresh: int, left: int) -> None:
        if (fresh, left) != self._shown:
            self._shown, self._since = (fresh, left), self._clock()
            log.info("renewal", of=self.phase.value, fresh=fresh, left=left)

    def _patience(self) -> float:
        """One may take this long to come, and the one before it to go."""
        return self._settings.start_timeout_s + self._settings.drain_timeout_s + MARGIN_S

    def _give_up(self) -> None:
        fresh, left = self._shown or (0, len(self._old))
        log.error("renewal_given_up", of=self.phase.value, fresh=fresh, left=left)
        self.phase = Phase.IDLE
        try:
            self._control.mark(False)
        except Exception as error:
            log.warning("renewal_step_failed", exception=type(error).__name__)
