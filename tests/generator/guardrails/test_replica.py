"""The text guard's deployment class without a cluster, and the port that calls it, over a scripted double."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.guard import BLOCK, CheckerDouble

from cosmos3_serve.errors import GuardrailsUnavailable
from cosmos3_serve.generator.guardrails.port import RayTextGuard
from cosmos3_serve.generator.guardrails.replica import TOGETHER, GuardReplica
from cosmos3_serve.generator.guardrails.text_guard import read_records
from cosmos3_serve.settings import GeneratorSettings
from cosmos3_serve.weights.guardrail_assets import GuardrailFiles

FILES = GuardrailFiles(
    "diffusers", "stub/guardrail", "a" * 40, Path("/s"), Path("/n"), "stub/text", "b" * 40, Path("/t"), "granted"
)
SETTINGS = GeneratorSettings(engine="diffusers", guardrail_controversial="pass", guardrail_timeout_s=0.05)


def replica(*checkers: Any) -> GuardReplica:
    return GuardReplica(SETTINGS, FILES, lambda files, controversial: list(checkers))


async def test_records_come_back_as_json_and_are_believed() -> None:
    guard = replica(CheckerDouble("words"))
    texts = [("prompt", "a cat"), ("negative_prompt", BLOCK)]
    answer = await guard.check(texts)
    assert all(isinstance(row, dict) for row in answer)
    assert [r.decision for r in read_records(answer, texts, await guard.names())] == ["passed", "blocked"]


def test_the_policy_reaches_the_loader() -> None:
    seen: list[Any] = []

    def load(files: GuardrailFiles, controversial: str) -> list[Any]:
        seen.append((files, controversial))
        return [CheckerDouble()]

    GuardReplica(SETTINGS, FILES, load)
    assert seen == [(FILES, "pass")]


def test_why_it_did_not_load_survives_serve() -> None:
    def load(files: GuardrailFiles, controversial: str) -> list[Any]:
        raise GuardrailsUnavailable("no words", code="guardrail_selftest")

    with pytest.raises(GuardrailsUnavailable, match=r"no words \[guardrail_selftest\]"):
        GuardReplica(SETTINGS, FILES, load)
    with pytest.raises(GuardrailsUnavailable, match=r"\[guardrail_no_checkers\]"):
        replica()


async def test_samples_that_come_together_are_released_together() -> None:
    judged = 0

    class Counting(CheckerDouble):
        def judge(self, text: str) -> bool:
            nonlocal judged
            judged += 1
            return True

    guard = replica(Counting())
    released: list[int] = []

    async def one(number: int) -> None:
        await guard.check([("prompt", f"text {number}")])
        released.append(judged)

    await asyncio.gather(*[one(number) for number in range(TOGETHER + 3)])
    assert released == [TOGETHER] * TOGETHER + [TOGETHER + 3] * 3


async def test_a_caller_that_left_costs_nobody_anything() -> None:
    guard = replica(CheckerDouble())
    left = asyncio.create_task(guard.check([("prompt", "x")]))
    await asyncio.sleep(0)
    left.cancel()
    assert len(await guard.check([("prompt", "y")])) == 1


async def test_a_fault_of_the_guard_is_raised_to_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = replica(CheckerDouble())
    monkeypatch.setattr(guard, "_judge", lambda samples, answers: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await guard.check([("prompt", "x")])
    monkeypatch.undo()
    assert len(await guard.check([("prompt", "x")])) == 1


async def test_a_checker_that_hangs_makes_the_replica_unhealthy_and_blocks_no_loop() -> None:
    release = threading.Event()

    class Hangs(CheckerDouble):
        def judge(self, text: str) -> bool:
            return release.wait(10)

    guard = replica(Hangs())
    await guard.check_health()
    call = asyncio.create_task(guard.check([("prompt", "x")]))
    await asyncio.sleep(0.3)
    with pytest.raises(RuntimeError, match="hangs"):
        await guard.check_health()
    release.set()
    assert [row["decision"] for row in await call] == ["failed"]  # in time, though its thread goes on
    assert len(await guard.check([("prompt", "y")])) == 1
    await guard.check_health()


class Handle:
    """A double of Serve's handle: `names.remote()` and `check.remote(texts)`."""

    def __init__(self, names: Any = ("words",)) -> None:
        self.asked = 0
        self.answer = names
        self.names = SimpleNamespace(remote=self._names)
        self.check = SimpleNamespace(remote=self._check)

    async def _names(self) -> Any:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return list(self.answer)

    async def _check(self, texts: Any) -> Any:
        return texts


async def test_effective_means_that_it_answers_with_checkers() -> None:
    assert await RayTextGuard(Handle()).effective() == (True, "words")
    assert (await RayTextGuard(Handle(names=())).effective())[0] is False
    assert (await RayTextGuard(Handle(names=RuntimeError("gone"))).effective())[0] is False


async def test_names_are_asked_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Handle()
    guard = RayTextGuard(handle)
    for _ in range(3):
        assert list(await guard.names()) == ["words"]
    assert handle.asked == 1
    monkeypatch.setattr("cosmos3_serve.generator.guardrails.port.REMEMBERED_S", -1.0)
    handle.answer = RuntimeError("gone")
    assert (await guard.effective())[0] is False  # what was true a moment ago is not believed any more


async def test_texts_are_handed_on() -> None:
    assert await RayTextGuard(Handle()).check([("prompt", "a")]) == [("prompt", "a")]


async def test_a_slow_text_fails_alone_and_its_neighbours_wait_unharmed() -> None:
    """Neighbours before it, behind it in the same few, and in the next few."""
    going = threading.Event()

    class Slow(CheckerDouble):
        def judge(self, text: str) -> bool:
            if "long" in text:
                going.wait(30)
            return True

    guard = replica(Slow())
    texts = [[("prompt", "long" if n == 2 else f"text {n}")] for n in range(TOGETHER + 2)]
    calls = [asyncio.create_task(guard.check(one)) for one in texts]
    done, _ = await asyncio.wait([calls[2]], timeout=30)
    assert done and [row["decision"] for row in calls[2].result()] == ["failed"]
    assert calls[0].done() and calls[1].done() and not calls[3].done()
    going.set()
    for number, call in enumerate(calls):
        answer = await asyncio.wait_for(call, 30)
        assert [row["decision"] for row in answer] == ["failed" if number == 2 else "passed"]
    await guard.check_health()
