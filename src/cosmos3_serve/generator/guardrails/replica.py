"""GuardReplica: the text guard as a Serve application of its own, up before any model is deployed.

It runs on the CPU. The service deploys it first and waits: a checker that does not load refuses the start before a GPU
is touched. In operation Serve restarts it when it hangs or dies; until it answers again samples fail closed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from ray import serve

from cosmos3_serve.errors import GuardrailsUnavailable
from cosmos3_serve.generator.guardrails import GUARD
from cosmos3_serve.generator.guardrails.checkers import Controversial, load_checkers
from cosmos3_serve.generator.guardrails.text_guard import TextChecker, TextGuard
from cosmos3_serve.service import logs
from cosmos3_serve.settings import GeneratorSettings
from cosmos3_serve.weights.guardrail_assets import GuardrailFiles

# Samples whose texts are judged in one go: they are released together, so that they can share a wave.
TOGETHER = 8
WINDOW_S = 0.01
CALLS = 64  # at once; more wait in Serve

Texts = list[tuple[str, str]]
Answer = list[dict[str, Any]]
Load = Callable[[GuardrailFiles, Controversial], list[TextChecker]]


class GuardReplica:
    """
    Args:
        load: makes the checkers. The product has one such function; tests hand in doubles.
    """

    def __init__(self, settings: GeneratorSettings, files: GuardrailFiles, load: Load) -> None:
        logs.configure(settings.log_level)
        try:
            self._guard = TextGuard(load(files, settings.guardrail_controversial))
        except GuardrailsUnavailable as refused:
            # Serve hands on the words of a constructor's error and nothing else.
            raise GuardrailsUnavailable(f"{refused.detail} [{refused.stable_code}]") from None
        self._timeout_s = settings.guardrail_timeout_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="text-guard")
        self._since: float | None = None
        self._waiting: list[tuple[Texts, asyncio.Future[Answer]]] = []
        self._working: asyncio.Task[None] | None = None

    async def names(self) -> list[str]:
        return self._guard.names

    async def check(self, texts: Texts) -> Answer:
        """The records of one sample's texts, as JSON."""
        place: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((texts, place))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        return await place

    async def _work(self) -> None:
        """Judge what waits, a few samples at a time, each few released together."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            await asyncio.sleep(WINDOW_S)
            taken = [entry for entry in self._waiting[:TOGETHER] if not entry[1].done()]  # done: its caller left
            del self._waiting[:TOGETHER]
            if not taken:
                continue
            try:
                answers: list[Answer] = await loop.run_in_executor(self._thread, self._judged, [t for t, _ in taken])
            except Exception as error:
                for _, place in taken:
                    if not place.done():
                        place.set_exception(error)
                continue
            finally:
                self._since = None
            for (_, place), answer in zip(taken, answers, strict=True):
                if not place.done():
                    place.set_result(answer)

    def _judged(self, samples: list[Texts]) -> list[Answer]:
        answers = []
        for texts in samples:
            self._since = time.monotonic()
            answers.append([asdict(record) for record in self._guard.check(texts)])
        return answers

    async def check_health(self) -> None:
        """Serve replaces the replica when this raises."""
        since = self._since
        if since is not None and time.monotonic() - since > self._timeout_s:
            raise RuntimeError("the text guard hangs over one sample")


def guard_application(settings: GeneratorSettings, files: GuardrailFiles, load: Load = load_checkers) -> Any:
    """The text guard as a bound Serve application."""
    return (
        serve.deployment(GuardReplica)
        .options(
            name=GUARD,
            num_replicas=1,
            max_ongoing_requests=CALLS,
            ray_actor_options={"num_cpus": 0},
            health_check_period_s=5.0,
            health_check_timeout_s=60.0,
            graceful_shutdown_wait_loop_s=0.2,
            graceful_shutdown_timeout_s=2.0,
            max_constructor_retry_count=1,
            logging_config={"enable_access_log": False},
        )
        .bind(settings, files, load)
    )
