"""Watchdog: asks the engine how far it is, and ends the wait for one that got stuck.

Progress is anything that moves: a denoising step, a sample that ended, a wave given to an idle engine; and a replica
that is being started. Without any for `stall_timeout_s` while waves are out, those that the engine has begun are given
up (where it has told of none, the one that it got first), the replica is replaced, and nothing new is started until an
engine answers again. Waves that only waited behind them get another attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from cosmos3_serve.errors import SampleCode, SampleError
from cosmos3_serve.generator.ports import Clock, EnginePort
from cosmos3_serve.generator.queue.runner import Flight

log = structlog.get_logger(__name__)

POLL_S = 1.0
ANSWER_S = 10.0
REPLACE_S = 60.0
LOAD_S = 3600.0  # loading that takes longer stands still, too


class Watchdog:
    """Args:
    on_step: told `(sample key, step, total)` for each step that changed.
    on_recovered: told when an engine answers again.
    """

    def __init__(
        self,
        engine: EnginePort,
        clock: Clock,
        *,
        stall_timeout_s: float,
        on_step: Callable[[str, int, int], None],
        on_recovered: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._timeout_s = stall_timeout_s
        self._on_step = on_step
        self._on_recovered = on_recovered
        self._flights: set[Flight] = set()
        self._moved_at = 0.0
        self._loading_since: float | None = None
        self.stalled = False
        self.steps: dict[str, tuple[int, int]] = {}

    def departed(self, flight: Flight) -> None:
        if not self._flights:
            self.moved()
        flight.departed_at = self._clock.monotonic()
        self._flights.add(flight)

    def landed(self, flight: Flight) -> None:
        self._flights.discard(flight)
        for key in flight.keys:
            self.steps.pop(key, None)
        self.moved()

    def moved(self) -> None:
        self._moved_at = self._clock.monotonic()

    @property
    def flights(self) -> frozenset[Flight]:
        return frozenset(self._flights)

    @property
    def denoising(self) -> bool:
        """Whether a wave is out that is not known to have taken its last step."""
        return any(not self._stepped_out(key) for flight in self._flights for key in flight.keys)

    def _stepped_out(self, key: str) -> bool:
        step, total = self.steps.get(key, (0, 1))
        return step >= total

    async def run(self) -> None:
        """Poll for ever; ends only by cancellation."""
        while True:
            await self._clock.sleep(POLL_S)
            if not self._flights:
                continue
            if self._engine.replacing:
                self.moved()  # loading weights takes its time, and the engine bounds it
                continue
            await self._poll()
            if self._flights and self._clock.monotonic() - self._moved_at > self._timeout_s:
                if await self._loading():
                    self.moved()
                else:
                    await self._replace()

    async def _loading(self) -> bool:
        try:
            async with asyncio.timeout(ANSWER_S):
                loading = await self._engine.loading()
        except Exception as error:
            log.debug("engine_loading_unknown", exception=type(error).__name__)
            return False
        now = self._clock.monotonic()
        if not loading:
            self._loading_since = None
            return False
        self._loading_since = now if self._loading_since is None else self._loading_since
        return now - self._loading_since < LOAD_S

    def _suspects(self) -> set[Flight]:
        """Waves that the engine has begun, by the steps that it told of; else the first that it got."""
        begun = {flight for flight in self._flights if any(key in self.steps for key in flight.keys)}
        return begun or {min(self._flights, key=lambda flight: flight.departed_at)}

    async def _poll(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                progress = await self._engine.progress()
        except Exception as error:
            log.debug("engine_progress_unknown", exception=type(error).__name__)
            return
        mine = {key for flight in self._flights for key in flight.keys}
        for key, (step, total) in progress.items():
            if key in mine and self.steps.get(key) != (step, total):
                self.steps[key] = (step, total)
                self.moved()
                self._on_step(key, step, total)

    async def _replace(self) -> None:
        self.stalled = True
        quiet = self._clock.monotonic() - self._moved_at
        log.error("engine_stalled", seconds=round(quiet), waves=len(self._flights))
        reason = SampleError(SampleCode.ENGINE_STALLED, f"the engine made no progress for {quiet:.0f} s")
        suspects = self._suspects()
        waiting = self._flights - suspects
        for flight in suspects:
            flight.abort(reason)
        await self._insist(self._engine.replace)
        await self._insist(self._engine.info)  # loading weights takes its time; replacing again would start it anew
        for flight in waiting & self._flights:
            flight.lost.set()
        self.moved()
        self.stalled = False
        self._on_recovered()

    async def _insist(self, ask: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                async with asyncio.timeout(REPLACE_S):
                    await ask()
                return
            except Exception as error:
                log.warning("engine_not_back", exception=type(error).__name__)
                await self._clock.sleep(POLL_S)
