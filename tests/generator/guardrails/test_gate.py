"""The gate in front of the engine, in a real core with a scripted double of the text guard."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.core import Core, image, start_core
from support.fake_engine import FakeEngine
from support.fakes import FakeClock
from support.guard import BLOCK, NONSENSE, RAISE, GuardDouble

from cosmos3_serve.errors import EngineFailed, GuardrailsUnavailable
from cosmos3_serve.generator.guardrails import gate

Make = Callable[..., Awaitable[Core]]


@pytest_asyncio.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    cores: list[Core] = []

    async def made(guard: GuardDouble | None = None, **options: Any) -> Core:
        core = await start_core(
            tmp_path, FakeClock(), guard=guard or GuardDouble(), **{"guardrails": True, "max_batch_size": 4, **options}
        )
        cores.append(core)
        return core

    yield made
    for core in cores:
        await core.coordinator.close()


def records(response: dict[str, Any]) -> dict[str, Any]:
    return {sample["name"]: sample for sample in response["samples"]}


def names(core: Core) -> set[str]:
    return {job.name for job in core.engine.jobs.values()}


async def test_one_that_does_not_pass_never_reaches_the_engine_and_hides_no_other(make: Make) -> None:
    core = await make()
    texts = {"good": "a cat", "bad": BLOCK, "broken": RAISE, "odd": NONSENSE, "fine": "a dog"}
    await core.submit(*[image(name, prompt=f"a secret, {text}") for name, text in texts.items()])
    found = records(await core.finish())
    assert {name: sample["code"] for name, sample in found.items()} == {
        "good": None, "bad": "guardrail_blocked", "broken": "guardrail_failed", "odd": "guardrail_failed",
        "fine": None,
    }  # fmt: skip
    assert names(core) == {"good", "fine"}
    assert [s["retryable"] for s in found.values()] == [False, False, True, True, False]


async def test_the_record_says_what_ran_and_never_the_words(make: Make) -> None:
    core = await make()
    await core.submit(image("good", negative_prompt="fog"), image("bad", prompt=f"a secret {BLOCK}"))
    found = records(await core.finish())
    good, bad = found["good"]["guardrails"], found["bad"]["guardrails"]
    assert (good["configured"], good["applied"]) == (True, True)
    front = [row for row in good["checks"] if row["check"].startswith(("prompt.", "negative_prompt."))]
    assert [row["check"] for row in front] == [
        "prompt.words", "prompt.model", "negative_prompt.words", "negative_prompt.model",
    ]  # fmt: skip
    assert all(
        row["decision"] == "passed" and row["revision"] == "0" * 40 and row["ms"] >= 0 and "double" in row["checker"]
        for row in front
    )
    assert [(row["check"], row["decision"]) for row in bad["checks"]] == [
        ("prompt.words", "blocked"), ("prompt.model", "not_run"),
    ]  # fmt: skip
    assert "secret" not in json.dumps(found["bad"])
    assert found["good"]["timings"]["guardrail"] >= 0
    view = await core.coordinator.view("r1", tenant="t")
    assert "prompt.words" in view.model_dump_json() and "secret" not in view.model_dump_json()
    counted = [seen[1:] for seen in core.counter.seen if seen[0] == "guardrail"]
    assert counted.count(("prompt.words", "passed")) == 1 and counted.count(("prompt.words", "blocked")) == 1


async def test_the_negative_prompt_blocks_too(make: Make) -> None:
    core = await make()
    await core.submit(image("a", negative_prompt=BLOCK), image("b", negative_prompt="fog"))
    assert await settled(core) == ["guardrail_blocked", "succeeded"]


async def many_turns() -> None:
    for _ in range(300):
        await asyncio.sleep(0.001)


async def settled(core: Core) -> list[str]:
    await core.finish()
    return await core.codes()


async def test_staged_text_is_checked(make: Make) -> None:
    core = await make(allowed_s3_roots="s3://b")
    await core.bucket.put_bytes("k/bad.txt", BLOCK.encode())
    await core.bucket.put_bytes("k/good.txt", b"a cat")
    await core.submit(
        {"name": "a", "num_frames": 1, "prompt_path": "s3://b/k/bad.txt"},
        {"name": "b", "num_frames": 1, "prompt_path": "s3://b/k/good.txt"},
    )
    assert await settled(core) == ["guardrail_blocked", "succeeded"]
    assert names(core) == {"b"}


@pytest.mark.parametrize(
    "answer", [[], "passed", True, [{"check": "prompt.words", "decision": "passed"}], [{"decision": "passed"}] * 2]
)
async def test_a_guard_that_answers_nonsense_fails_the_sample(make: Make, answer: Any) -> None:
    guard = GuardDouble()
    guard.answer = answer
    core = await make(guard)
    await core.submit("a")
    response = records(await core.finish())
    assert response["a"]["code"] == "guardrail_failed" and names(core) == set()
    assert response["a"]["guardrails"]["applied"] is False
    assert response["a"]["guardrails"]["checks"] == [{"check": "prompt.text_guard", "decision": "failed"}]


async def test_a_guard_that_is_lost_fails_the_sample_and_the_next_one_goes_on(make: Make) -> None:
    guard = GuardDouble()
    guard.error = EngineFailed("gone", code="replica_lost")
    core = await make(guard)
    await core.submit("a", id="first")
    await core.finish("first")
    assert await core.codes("first") == ["guardrail_failed"]
    guard.error = None
    await core.submit("b", id="second")
    await core.finish("second")
    assert await core.codes("second") == ["succeeded"]


async def test_a_guard_that_is_lost_is_asked_again_when_it_is_back(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process may have died of another sample's text."""
    monkeypatch.setattr(gate, "BACK_S", 0.001)
    guard = GuardDouble()
    told: list[str] = []

    async def names() -> list[str]:
        told.append("names")
        if 1 < len(told) < 5:
            raise ConnectionError
        return ["words", "model"]

    async def check(texts: Any) -> Any:
        if len(told) < 2:
            raise gate.GuardLost("RayActorError")
        return answered(texts)

    answered = guard._guard.check
    monkeypatch.setattr(guard, "names", names)
    monkeypatch.setattr(guard, "check", check)
    core = await make(guard)
    await core.submit("a")
    assert await settled(core) == ["succeeded"] and len(told) >= 5


async def test_waiting_for_others_is_not_a_samples_own_time(make: Make) -> None:
    """Four ask at once of a guard that takes a good part of the limit for each."""
    lock, guard = asyncio.Lock(), GuardDouble()
    decide = guard.check

    async def check(texts: Any) -> Any:
        async with lock:
            await asyncio.sleep(0.2)
            return await decide(texts)

    guard.check = check  # type: ignore[method-assign]
    core = await make(guard, guardrail_timeout_s=0.5)
    await core.submit(*[f"s{n}" for n in range(8)])
    assert await settled(core) == ["succeeded"] * 8


async def test_a_guard_that_hangs_fails_the_sample_in_time(make: Make) -> None:
    guard = GuardDouble()
    guard.hang = True
    core = await make(guard, guardrail_timeout_s=0.05)
    await core.submit("a")
    found = records(await core.finish())
    assert found["a"]["code"] == "guardrail_failed" and "in time" in found["a"]["message"]
    assert names(core) == set()


async def test_a_batch_that_is_cancelled_stops_being_checked(make: Make) -> None:
    guard = GuardDouble()
    guard.hang = True
    core = await make(guard)
    await core.submit("a", "b")
    await many_turns()
    assert len(guard.seen) == 2
    await core.coordinator.cancel("r1", tenant="t")
    assert await settled(core) == ["cancelled", "cancelled"]


async def test_checks_ahead_are_bounded(make: Make) -> None:
    guard = GuardDouble()
    guard.hang = True
    core = await make(guard, max_batch_size=2)
    await core.submit(*[f"s{i}" for i in range(40)])
    await many_turns()
    assert len(guard.seen) == 4


async def test_samples_of_many_kinds_in_turn_still_make_full_waves(make: Make) -> None:
    core = await make()
    await core.submit(*[image(f"s{n}", num_steps=1 + n % 8) for n in range(128)])
    await core.finish()
    sizes = [len(call) for call in core.engine.calls]
    assert sum(sizes) == 128 and len(sizes) <= 40  # 32 full waves, and some at the ends


async def test_a_failed_check_may_be_run_again_a_blocked_text_may_not(make: Make) -> None:
    guard = GuardDouble()
    guard.error = RuntimeError("once")
    core = await make(guard)
    await core.submit("a", image("b", prompt=BLOCK))
    assert await settled(core) == ["guardrail_failed", "guardrail_failed"]
    guard.error = None
    await core.submit("a", image("b", prompt=BLOCK))
    assert await settled(core) == ["succeeded", "guardrail_blocked"]
    await core.submit("a", image("b", prompt=BLOCK))
    asked = len(guard.seen)
    assert await settled(core) == ["succeeded", "guardrail_blocked"] and len(guard.seen) == asked


async def test_on_without_a_guard_is_no_service(tmp_path: Path) -> None:
    with pytest.raises(GuardrailsUnavailable, match="no text guard"):
        await start_core(tmp_path, FakeClock(), guardrails=True, engine=FakeEngine(tmp_path / "out", limit=4))
