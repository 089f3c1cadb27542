"""Places that several owners share: never more than there are, nobody starves, nothing is lost when somebody leaves."""

from __future__ import annotations

import asyncio
import random

import pytest

from cosmos3_serve.errors import NotReady
from cosmos3_serve.reasoner.shares import MAX_OWNERS, RECENT_S, Owners, Shares


def busy() -> NotReady:
    return NotReady("busy", code="media_busy")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_one_owner_uses_all_places() -> None:
    shares = Shares(4, 8, busy)
    for _ in range(4):
        await shares.take("a")
    assert shares.held == 4


async def test_a_place_stays_free_for_who_was_here_a_moment_ago() -> None:
    clock = Clock()
    shares = Shares(4, 8, busy, clock=clock)
    async with shares.place("b"):
        pass
    for _ in range(3):
        await shares.take("a")
    waits = asyncio.create_task(shares.take("a"))
    await asyncio.sleep(0)
    assert not waits.done()
    async with asyncio.timeout(1):
        await shares.take("b")
    shares.give_back("b")
    await asyncio.sleep(0)
    assert not waits.done(), "b may come again"
    clock.now += RECENT_S + 1
    shares.give_back("a")
    async with asyncio.timeout(1):
        await waits


async def test_at_most_half_is_kept_free() -> None:
    shares = Shares(4, 8, busy)
    for owner in "bcdefgh":
        async with shares.place(owner):
            pass
    await shares.take("a")
    await shares.take("a")
    assert shares.held == 2


async def test_who_waits_is_served_by_owner_in_turn() -> None:
    shares = Shares(1, 16, busy)
    await shares.take("a")
    order: list[str] = []

    async def use(owner: str, name: str) -> None:
        async with shares.place(owner):
            order.append(name)

    tasks = []
    for owner, name in (("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1"), ("b", "b2")):
        tasks.append(asyncio.create_task(use(owner, name)))
        await asyncio.sleep(0)
    shares.give_back("a")
    await asyncio.gather(*tasks)
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3"]


async def test_the_line_is_bounded_and_no_owner_fills_it() -> None:
    shares = Shares(1, 4, busy)
    await shares.take("a")
    waiting = [asyncio.create_task(shares.take("a")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(NotReady):
        await shares.take("a")
    waiting += [asyncio.create_task(shares.take("b")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(NotReady):
        await shares.take("c")
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert shares.waiting == 0


def test_owners_are_remembered_within_bounds() -> None:
    clock = Clock()
    owners = Owners(RECENT_S, clock)
    for number in range(2 * MAX_OWNERS):
        owners.note(f"o{number}")
    assert len(owners.others("x")) == MAX_OWNERS
    clock.now += RECENT_S + 1
    assert owners.others("x") == []


@pytest.mark.parametrize("seed", range(20))
async def test_random_orders(seed: int) -> None:
    draw = random.Random(seed)
    limit = draw.randint(1, 5)
    shares = Shares(limit, 1000, busy)
    running: list[str] = []
    served: dict[str, int] = {}

    async def use(owner: str) -> None:
        try:
            async with shares.place(owner):
                running.append(owner)
                assert len(running) <= limit
                try:
                    for _ in range(draw.randint(0, 4)):
                        await asyncio.sleep(0)
                    served[owner] = served.get(owner, 0) + 1
                finally:
                    running.remove(owner)
        except asyncio.CancelledError:
            served[owner] = served.get(owner, 0) + 1

    tasks = []
    count = {owner: draw.randint(1, 40) for owner in "abcd"}
    names = [owner for owner, number in count.items() for _ in range(number)]
    draw.shuffle(names)
    for owner in names:
        tasks.append(asyncio.create_task(use(owner)))
        if draw.random() < 0.3:
            await asyncio.sleep(0)
        if draw.random() < 0.1:
            draw.choice(tasks).cancel()
    async with asyncio.timeout(10):
        await asyncio.gather(*tasks, return_exceptions=True)
    assert (shares.held, shares.waiting) == (0, 0)
