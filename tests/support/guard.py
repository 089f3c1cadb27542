"""Doubles of the guardrails' deciders, scripted by words in the text. Doubles, and named so: they judge nothing, no
setting of the product selects them, and they live in the tests alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from cosmos3_serve.generator.guardrails.text_guard import TextGuard, Texts

BLOCK, RAISE, NONSENSE = "[block]", "[raise]", "[nonsense]"


class CheckerDouble:
    """Blocks, raises or answers nonsense where the text says so; else passes. Remembers how often it was asked."""

    def __init__(self, name: str = "double") -> None:
        self.name, self.checker, self.revision = name, f"scripted double {name}", "0" * 40
        self.asked = 0

    def judge(self, text: str) -> bool:
        self.asked += 1
        if RAISE in text:
            raise RuntimeError(f"broken over {text}")
        if NONSENSE in text:
            return "perhaps"  # type: ignore[return-value]
        return BLOCK not in text


class GuardDouble:
    """A text guard over `CheckerDouble`s, in this process. `answer` replaces what it says; `hang` never answers."""

    def __init__(self, *checkers: CheckerDouble) -> None:
        self.checkers = checkers or (CheckerDouble("words"), CheckerDouble("model"))
        self._guard = TextGuard(self.checkers)
        self.seen: list[list[tuple[str, str]]] = []
        self.answer: Any = None
        self.error: Exception | None = None
        self.hang = False

    async def names(self) -> Sequence[str]:
        return self._guard.names

    async def check(self, texts: Texts) -> Any:
        self.seen.append(list(texts))
        if self.hang:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return self.answer if self.answer is not None else self._guard.check(texts)
