"""What the core asks of the world: a clock, an engine, somebody who counts. Tests bring their own of each."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from cosmos3_serve.generator.engines.job import EngineInfo, EngineJob, EngineResult


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds for measuring; never goes back."""

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class EnginePort(Protocol):
    """The model deployment as the coordinator sees it; calls of one wave are made concurrently and coalesce below."""

    @property
    def replacing(self) -> bool:
        """The engine replaces its replica by itself just now: not moving, but not stuck either."""

    async def loading(self) -> bool:
        """No replica runs: one is being started, which is not standing still. Raises where that is not known."""

    async def info(self) -> EngineInfo:
        """Raises while no replica answers."""

    async def generate(self, job: EngineJob) -> EngineResult:
        """One sample. Raises `SampleError` for what concerns this sample alone, anything else for a broken wave."""

    async def progress(self) -> dict[str, tuple[int, int]]:
        """`sample_key` to (step, total steps) of what denoises now; empty where the engine can't tell."""

    async def cancel(self, keys: list[str]) -> None:
        """Ask running samples to stop at their next step; unknown keys and unable engines ignore it."""

    async def replace(self) -> None:
        """Kill a wedged replica so that a fresh one takes its place."""

    async def incarnation(self) -> str:
        """Another one for every replica that there ever was."""

    async def read_probe(self, name: str) -> str:
        """Text of a file below the output root, as the model's process reads it."""


class Observer(Protocol):
    """Hooks for metrics. Called on the event loop: they must not block or raise."""

    def coalesced(self, size: int) -> None: ...

    def inference(self, size: int) -> None: ...

    def phase(self, name: str, seconds: float) -> None: ...

    def sample_state(self, state: str) -> None: ...

    def guardrail(self, check: str, decision: str) -> None: ...

    def bytes(self, direction: str, count: int) -> None: ...


class NoObserver:
    """Counts nothing."""

    def coalesced(self, size: int) -> None: ...

    def inference(self, size: int) -> None: ...

    def phase(self, name: str, seconds: float) -> None: ...

    def sample_state(self, state: str) -> None: ...

    def guardrail(self, check: str, decision: str) -> None: ...

    def bytes(self, direction: str, count: int) -> None: ...
