"""Supervisor: looks after the workers below upstream's replica, for upstream has no `check_health` of its own.

Three ways in which a worker is lost while Serve calls its replica healthy: it died; it hangs in a batch, and with it
the replica, past upstream's own time limit; it hangs while nobody asks it anything. The first is seen in Ray's actor
table, the second by the age of the batch, the third by a probe after a quiet time. Each ends in a new replica, and
/ready says 503 until that one has passed the canary.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog

log = structlog.get_logger(__name__)

LOOK_S = 5.0
CONFIRM = 2  # looks that must agree: a worker that was just started is not in the table at once
BATCH_S = 300.0 + 30.0  # upstream's own limit, and time to say so
IDLE_S = 300.0
PROBE_S = 120.0
PROMPT = "a plain grey square"


class Watched(Protocol):
    @property
    def replacing(self) -> bool: ...
    @property
    def busy_s(self) -> float | None: ...
    @property
    def idle_s(self) -> float: ...
    async def probe(self, **prompt: str) -> str: ...
    async def replace(self) -> None: ...


class Workers(Protocol):
    def serving(self) -> bool: ...
    def missing(self) -> int:
        """How many of the running replica's workers are not alive. Blocks."""


class Supervisor:
    """Args are the limits above, for tests."""

    def __init__(
        self,
        engine: Watched,
        workers: Workers,
        *,
        look_s: float = LOOK_S,
        batch_s: float = BATCH_S,
        idle_s: float = IDLE_S,
        probe_s: float = PROBE_S,
    ) -> None:
        self._engine = engine
        self._workers = workers
        self._look_s = look_s
        self._batch_s = batch_s
        self._idle_s = idle_s
        self._probe_s = probe_s
        self._missing = 0

    async def run(self) -> None:
        """For ever; ends only by cancellation."""
        while True:
            await asyncio.sleep(self._look_s)
            try:
                reason = await self.look()
                if reason:
                    log.error("worker_wedged", reason=reason)
                    await self._engine.replace()
            except Exception as error:
                log.warning("supervision_failed", exception=type(error).__name__)

    async def look(self) -> str:
        """Why the replica must be replaced, or an empty text."""
        if self._engine.replacing or not await asyncio.to_thread(self._workers.serving):
            self._missing = 0
            return ""
        missing = await asyncio.to_thread(self._workers.missing)
        self._missing = self._missing + 1 if missing else 0
        if self._missing >= CONFIRM:
            self._missing = 0
            return f"{missing} workers are not alive"
        busy = self._engine.busy_s
        if busy is not None:
            return f"a batch has run for {busy:.0f} s" if busy > self._batch_s else ""
        if self._engine.idle_s > self._idle_s:
            return await self._probe()
        return ""

    async def _probe(self) -> str:
        try:
            async with asyncio.timeout(self._probe_s):
                await self._engine.probe(prompt=PROMPT)
            return ""
        except TimeoutError:
            return f"a probe of one step was not answered in {self._probe_s:.0f} s"
        except Exception as error:
            return f"a probe of one step failed ({type(error).__name__})"
