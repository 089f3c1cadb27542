"""ServiceChecks: every readiness check of the generator, each with its reason."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from cosmos3_serve.errors import Cosmos3Error
from cosmos3_serve.generator.http.front import Front
from cosmos3_serve.generator.replica.canary import Canary
from cosmos3_serve.service.readiness import Readiness, Remembered, Verdict

STATUS_TTL_S = 2.0


class Stats(Protocol):
    @property
    def depth(self) -> int: ...
    @property
    def stalled(self) -> bool: ...
    @property
    def disk_trouble(self) -> str | None: ...


class TextGuard(Protocol):
    async def effective(self) -> tuple[bool, str]: ...


class ServiceChecks:
    """Args:
    serve_status: what the Serve controller says of the application, the model deployment and its replicas.
    stats: of the queue.
    guard: the text guard, None where guardrails are off.

    `failure` is set by whoever found that this replica can never become ready.
    """

    def __init__(
        self,
        front: Front,
        canary: Canary,
        serve_status: Callable[[], Awaitable[Mapping[str, Any]]],
        stats: Callable[[], Stats],
        guard: TextGuard | None = None,
    ) -> None:
        self._front = front
        self._canary = canary
        self._status = Remembered(serve_status, STATUS_TTL_S)
        self._stats = stats
        self._guard = guard
        self.failure: Cosmos3Error | None = None

    def register(self, readiness: Readiness) -> None:
        readiness.add("application", self._application)
        readiness.add("deployment", self._deployment)
        readiness.add("replicas", self._replicas)
        readiness.add("weights", self._weights)
        readiness.add("guardrails", self._guardrails)
        readiness.add("output_root", lambda: self._canary.output_root)
        readiness.add("canary", self._canary.verdict)
        readiness.add("queue", self._queue)
        readiness.add("tokens", self._tokens)
        readiness.add("admission", self._admission)

    async def _application(self) -> Verdict:
        status = await self._status()
        return status["application"] == "RUNNING", str(status["application"])

    async def _deployment(self) -> Verdict:
        status = await self._status()
        return status["deployment"] == "HEALTHY", str(status["deployment"])

    async def _replicas(self) -> Verdict:
        running = int((await self._status())["running"])
        return running > 0, f"{running} running"

    def _weights(self) -> Verdict:
        engine = self._front.engine
        if engine is None:
            return False, "the engine has not answered yet"
        return True, f"{engine.weights} weights of {engine.checkpoint} at {engine.checkpoint_revision}"

    async def _guardrails(self) -> Verdict:
        """Effective, not only configured: the text guard answers and the engine's own checks are loaded."""
        if not self._front.settings.guardrails:
            return True, "off by explicit choice: nothing is checked"
        if self._guard is None:
            return False, "configured, but there is no text guard"
        effective, words = await self._guard.effective()
        if not effective:
            return False, f"configured, but not effective: {words}"
        engine = self._front.engine
        if engine is None or engine.guardrails.get("configured") is not True:
            return False, "configured, but the engine's own checks are not loaded"
        return True, f"effective: {words}, and the engine's own"

    def _queue(self) -> Verdict:
        stats = self._stats()
        if stats.stalled:
            return False, "the engine makes no progress and is being replaced"
        if stats.disk_trouble:
            return False, stats.disk_trouble
        return True, f"{stats.depth} of {self._front.settings.queue_limit} samples wait"

    def _tokens(self) -> Verdict:
        problem = self._front.book.problem
        return not problem, problem or f"{len(self._front.book)} valid"

    def _admission(self) -> Verdict:
        if self._front.draining:
            return False, "draining"
        if self.failure is not None:
            return False, self.failure.detail
        return self._front.accepting, "open" if self._front.accepting else "starting"
