"""TextGate: between a sample's inputs and the queue of the engine. What does not pass never reaches an engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from cosmos3_serve.contract.resolved import ResolvedSample
from cosmos3_serve.errors import GuardrailsUnavailable, SampleCode, SampleError
from cosmos3_serve.generator.guardrails.record import CheckRecord
from cosmos3_serve.generator.guardrails.text_guard import Texts, read_records, refusal
from cosmos3_serve.generator.guardrails.texts import texts_of
from cosmos3_serve.settings import GeneratorSettings

log = structlog.get_logger(__name__)
BACK_S = 1.0  # between two looks for a guard that was lost


class TextGuardPort(Protocol):
    """The text guard as the core sees it. Where it runs is its own business."""

    async def names(self) -> Sequence[str]:
        """The checkers that are loaded. Raises while they are not."""

    async def check(self, texts: Texts) -> Any:
        """One record per text and checker, as `TextGuard.check`; believed only after `read_records`."""


class GuardLost(Exception):
    """The guard's process ended before it answered. Nothing was decided, perhaps for another sample's sake."""


class GuardObserver(Protocol):
    def guardrail(self, check: str, decision: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """`refused` is None only if everything passed."""

    records: tuple[CheckRecord, ...]
    refused: SampleError | None
    seconds: float


def text_gate(settings: GeneratorSettings, guard: TextGuardPort | None, observer: GuardObserver) -> TextGate | None:
    """The gate over `guard`; None with `--no-guardrails`.

    Raises:
        GuardrailsUnavailable: guardrails are on and there is no guard.
    """
    if not settings.guardrails:
        return None
    if guard is None:
        raise GuardrailsUnavailable("guardrails are on and there is no text guard: nothing would be checked")
    return TextGate(guard, observer, timeout_s=settings.guardrail_timeout_s)


class TextGate:
    """Args:
    timeout_s: for all texts of one sample. Those before it in the guard may take as long each.
    """

    def __init__(self, guard: TextGuardPort, observer: GuardObserver, *, timeout_s: float) -> None:
        self._guard = guard
        self._observer = observer
        self._timeout_s = timeout_s
        self._checking = 0

    async def check(self, asked: Mapping[str, Any], resolved: ResolvedSample) -> Verdict:
        """Never raises but for cancellation: whatever goes wrong is a refusal."""
        began = time.monotonic()
        fields: list[str] = ["prompt"]
        try:
            texts = await asyncio.to_thread(texts_of, asked, resolved)
            fields = [field for field, _ in texts]
            names, answer = await self._asked(texts)
            records = tuple(read_records(answer, texts, names))
            refused = refusal(records)
        except Exception as error:
            why = "in time" if isinstance(error, TimeoutError) else f"({type(error).__name__})"
            log.error("text_guard_failed", exc_info=error)
            records = tuple(CheckRecord(f"{field}.text_guard", "failed") for field in fields)
            refused = SampleError(SampleCode.GUARDRAIL_FAILED, f"the text check gave no valid answer {why}")
        for record in records:
            self._observer.guardrail(record.check, record.decision)
        return Verdict(records, refused, time.monotonic() - began)

    async def _asked(self, texts: Texts) -> tuple[list[str], Any]:
        """The loaded checkers, and the guard's answer. A guard that is lost is asked once more when it is back."""
        self._checking += 1
        try:
            async with asyncio.timeout(self._timeout_s * self._checking):
                names = list(await self._guard.names())
                if not texts:
                    return names, []
                try:
                    return names, await self._guard.check(texts)
                except GuardLost:
                    names = await self._back()
                    return names, await self._guard.check(texts)
        finally:
            self._checking -= 1

    async def _back(self) -> list[str]:
        """Wait for the guard's next process. The caller bounds the time."""
        while True:
            try:
                return list(await self._guard.names())
            except Exception:
                await asyncio.sleep(BACK_S)
