"""Turns and answers: who may be with upstream together, and who was."""

import asyncio
from collections.abc import Hashable

import pytest

from cosmos3_serve.generator.engines.framework import answers as answers_module
from cosmos3_serve.generator.engines.framework.answers import Answers
from cosmos3_serve.generator.engines.framework.turns import Turns


class Caller:
    """Enters, stays until told, and remembers who else was inside."""

    def __init__(self, turns: Turns, key: Hashable, inside: list["Caller"]) -> None:
        self.key, self.go = key, asyncio.Event()
        self.entered = False
        self._inside = inside
        self.task = asyncio.create_task(self._run(turns))

    async def _run(self, turns: Turns) -> None:
        async with turns.enter(self.key):
            self.entered = True
            self._inside.append(self)
            assert len({caller.key for caller in self._inside}) == 1, "two keys inside"
            await self.go.wait()
            self._inside.remove(self)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_equal_keys_enter_together_and_another_waits_until_all_left() -> None:
    turns, inside = Turns(4), list[Caller]()
    first, second, other = (Caller(turns, key, inside) for key in ("k", "k", "o"))
    await settled()
    assert first.entered and second.entered and not other.entered
    first.go.set()
    await settled()
    assert not other.entered
    second.go.set()
    await settled()
    assert other.entered
    other.go.set()
    await other.task
    assert turns.age_s is None


async def test_nobody_overtakes_who_waits() -> None:
    turns, inside = Turns(4), list[Caller]()
    callers = [Caller(turns, key, inside) for key in ("k", "o", "k")]
    await settled()
    assert [caller.entered for caller in callers] == [True, False, False]
    callers[0].go.set()
    await settled()
    assert [caller.entered for caller in callers] == [True, True, False]
    for caller in callers:
        caller.go.set()
    await asyncio.gather(*(caller.task for caller in callers))


async def test_a_turn_is_full_at_its_limit() -> None:
    turns, inside = Turns(2), list[Caller]()
    callers = [Caller(turns, "k", inside) for _ in range(3)]
    await settled()
    assert [caller.entered for caller in callers] == [True, True, False]
    for caller in callers:
        caller.go.set()
    await asyncio.gather(*(caller.task for caller in callers))


async def test_whoever_gives_up_waiting_blocks_nobody() -> None:
    turns, inside = Turns(4), list[Caller]()
    callers = [Caller(turns, key, inside) for key in ("k", "o", "k")]
    await settled()
    callers[1].task.cancel()
    await settled()
    assert callers[2].entered, "it may share the turn, and nobody is before it any more"
    callers[0].task.cancel()
    callers[2].go.set()
    await callers[2].task
    async with turns.enter("fresh") as (turn, seat):
        assert seat == 0 and turn.inside == 1


async def test_a_seat_given_in_the_moment_of_giving_up_is_given_back() -> None:
    turns, inside = Turns(4), list[Caller]()
    first, second = Caller(turns, "k", inside), Caller(turns, "o", inside)
    await settled()
    first.go.set()
    await asyncio.sleep(0)
    second.task.cancel()
    await settled()
    async with asyncio.timeout(1), turns.enter("fresh"):
        pass


async def test_answers_that_come_together_were_together() -> None:
    turns, answers = Turns(4), Answers()

    async def call(shape: str) -> tuple[int, int, bool]:
        async with turns.enter("k", shape) as (turn, seat):
            await asyncio.sleep(0.01)
            wave = await answers.wave(turn, seat)
            return wave.coalesced, wave.slot, wave.mixed_shapes

    assert await asyncio.gather(*(call("s") for _ in range(3))) == [(3, 0, False), (3, 1, False), (3, 2, False)]
    assert [mixed for _, _, mixed in await asyncio.gather(call("s"), call("t"))] == [True, True]


async def test_a_later_batch_of_the_same_turn_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers_module, "TOGETHER_S", 0.02)
    turns, answers = Turns(4), Answers()

    async def call(seconds: float) -> tuple[str, int]:
        async with turns.enter("k") as (turn, seat):
            await asyncio.sleep(seconds)
            wave = await answers.wave(turn, seat)
            return wave.coalesced_id, wave.coalesced

    early, early2, late = await asyncio.gather(call(0), call(0), call(0.2))
    assert early == early2 and early[1] == 2
    assert late[0] != early[0] and late[1] == 1
