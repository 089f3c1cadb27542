"""Reporter: keeps one replica in the fleet's roster, whatever happens to the roster's actor."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog

from cosmos3_serve.reasoner.fleet.core import FleetAway, FleetCalls
from cosmos3_serve.reasoner.fleet.member import Load, Service, Standing
from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef

log = structlog.get_logger(__name__)

BEAT_S = 1.0
CALL_S = 3.0


class Reporter:
    """Args:
    load: the replica's load now; None while it cannot be told.
    """

    def __init__(
        self, fleet: FleetCalls, service: Service, load: Callable[[], Awaitable[Load | None]], *, beat_s: float = BEAT_S
    ) -> None:
        self._fleet, self._service, self._load, self._beat_s = fleet, service, load, beat_s
        self.ref: ReplicaRef | None = None
        self._task: asyncio.Task[None] | None = None
        self._last = Load()
        self._standing: Standing | None = None
        self._draining = False
        self._seated = asyncio.Event()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def seated(self, within_s: float) -> bool:
        """Wait until the replica has its place, at most so long; whether it has."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._seated.wait()
        return self._seated.is_set()

    async def drain(self) -> None:
        """Ask to get nothing new; the replica stays a member until `leave`."""
        self._draining = True
        await self._tell("drain")

    async def leave(self) -> None:
        """Not a member any more, as far as the roster can be told."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._tell("leave")

    async def _tell(self, method: str) -> None:
        if self.ref is not None:
            with contextlib.suppress(FleetAway):
                await self._fleet.call(method, self.ref, timeout_s=CALL_S)

    async def _ask_load(self) -> Load | None:
        """An engine too busy to say how busy it is must not make its replica fall silent."""
        try:
            async with asyncio.timeout(self._beat_s):
                return await self._load()
        except TimeoutError:
            return None

    async def _run(self) -> None:
        member = False
        while True:
            try:
                if member and self.ref is not None:
                    self._last = await self._ask_load() or self._last
                    standing = await self._fleet.call("beat", self.ref, self._last, timeout_s=CALL_S)
                    member = standing is not None
                    self._standing = standing or self._standing
                if not member:
                    claim = (self._service, self.ref, self._standing)
                    place = await self._fleet.call("register", *claim, timeout_s=CALL_S)
                    member = place is not None
                    if place is not None:
                        log.info("registered", replica=place.id, again=place == self.ref)
                        self.ref = place
                        self._seated.set()
                        if self._draining:
                            await self._tell("drain")
            except FleetAway:
                pass  # an actor that comes back empty says so at the next beat
            except Exception as error:  # one that stopped beating would be lost while its engine serves
                log.error("beat_failed", exc_info=error)
            lost = not member and self.ref is not None
            await asyncio.sleep(self._beat_s / 4 if lost else self._beat_s)
