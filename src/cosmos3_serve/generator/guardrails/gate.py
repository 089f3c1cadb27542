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


class TextGuardPort(Protocol):
    """The text guard as the core sees it. Where it runs is its own business."""

    async def names(self) -> Sequence[str]:
        """The checkers that are loaded. Raises while they are not."""

    async def check(self, texts: Texts) -> Any:
        """One record per text and checker, as `TextGuard.check`; believed only after `read_records`."""


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
    timeout_s: for all texts of one sample, waiting for the guard included.
    """

    def __init__(self, guard: TextGuardPort, observer: GuardObserver, *, timeout_s: float) -> None:
        self._guard = guard
        self._observer = observer
        self._timeout_s = timeout_s

    async def check(self, asked: Mapping[str, Any], resolved: ResolvedSample) -> Verdict:
        """Never raises but for cancellation: whatever goes wrong is a refusal."""
        began = time.monotonic()
        fields: list[str] = ["prompt"]
        try:
            texts = await asyncio.to_thread(texts_of, asked, resolved)
            fields = [field for field, _ in texts]
            async with asyncio.timeout(self._timeout_s):
                names = list(await self._guard.names())
                answer = await self._guard.check(texts) if texts else []
            records = tuple(read_records(answer, texts, names))
            refused = refusal(records)
        except Exception as error:
            why = "in time" if isinstance(error, TimeoutError) else f"({type(error).__name__})"
            log.error("text_guard_failed", exception=type(error).__name__)
            records = tuple(CheckRecord(f"{field}.text_guard", "failed") for field in fields)
            refused = SampleError(SampleCode.GUARDRAIL_FAILED, f"the text check gave no valid answer {why}")
        for record in records:
            self._observer.guardrail(record.check, record.decision)
        return Verdict(records, refused, time.monotonic() - began)
