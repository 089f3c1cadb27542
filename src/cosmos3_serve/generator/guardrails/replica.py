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
HANGS = 3  # times the limit of one sample: then the thread is given up, and the replica with it

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
        self._since: tuple[int, float] | None = None  # which of the samples taken is being judged, since when
        self._late: tuple[int, float] | None = None
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
            answers: list[Answer] = []
            judging = loop.run_in_executor(self._thread, self._judge, [texts for texts, _ in taken], answers)
            try:
                while not judging.done():
                    await asyncio.wait({judging}, timeout=self._left_s(len(answers)))
                    if not judging.done() and self._left_s(len(answers)) == 0:
                        self._give_up(taken, answers)
                judging.result()
                _release(taken, answers)
            except Exception as error:
                for _, place in taken:
                    if not place.done():
                        place.set_exception(error)
            finally:
                self._since = None

    def _left_s(self, index: int) -> float | None:
        """Seconds until the sample that is being judged has taken too long; None: it was given up already."""
        since = self._since
        if since is None or since[0] != index:
            return self._timeout_s  # between two samples
        if self._late == since:
            return None
        return max(0.0, since[1] + self._timeout_s - time.monotonic())

    def _give_up(self, taken: list[tuple[Texts, asyncio.Future[Answer]]], answers: list[Answer]) -> None:
        """Fail the sample that is being judged, and release those before it. The thread goes on, so those behind it
        wait; they are not charged for it."""
        self._late = self._since
        done = len(answers)
        _release(taken, answers[:done])
        texts, place = taken[done]
        if not place.done():
            place.set_result([asdict(record) for record in self._guard.undecided(texts)])

    def _judge(self, samples: list[Texts], answers: list[Answer]) -> None:
        for index, texts in enumerate(samples):
            self._since = (index, time.monotonic())
            answers.append([asdict(record) for record in self._guard.check(texts)])

    async def check_health(self) -> None:
        """Serve replaces the replica when this raises."""
        since = self._since
        if since is not None and time.monotonic() - since[1] > HANGS * self._timeout_s:
            raise RuntimeError("the text guard hangs over one sample")


def _release(taken: list[tuple[Texts, asyncio.Future[Answer]]], answers: list[Answer]) -> None:
    for (_, place), answer in zip(taken, answers, strict=False):
        if not place.done():
            place.set_result(answer)


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
