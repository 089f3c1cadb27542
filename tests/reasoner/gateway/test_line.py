"""The waiting line: first come first served, bounded in number and time, and nobody is lost in it."""

import asyncio

import pytest

from cosmos3_serve.errors import NotReady, QueueFull
from cosmos3_serve.reasoner.gateway.line import SATURATED, WaitingLine


class Slots:
    def __init__(self, free: int) -> None:
        self.free = free
        self.asked = 0

    async def choose(self) -> str:
        self.asked += 1
        await asyncio.sleep(0)
        if not self.free:
            raise QueueFull("full", code=SATURATED)
        self.free -= 1
        return "placed"


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_nobody_waits_while_there_is_room() -> None:
    line, slots = WaitingLine(0, 1), Slots(1)
    assert await line.place(slots.choose) == "placed"
    with pytest.raises(QueueFull) as full:
        await line.place(slots.choose)
    assert full.value.stable_code == "queue_full"
    assert full.value.retry_after_s


async def test_slots_go_to_who_waited_longest_and_newcomers_stand_behind() -> None:
    line, slots = WaitingLine(10, 30), Slots(0)
    order: list[int] = []

    async def one(number: int) -> None:
        await line.place(slots.choose)
        order.append(number)

    waiting = [asyncio.create_task(one(number)) for number in range(4)]
    await settle()
    slots.free = 1
    newcomer = asyncio.create_task(one(9))  # there is room, and a line
    await settle()
    line.wake()
    await settle()
    assert order == [0]
    slots.free = 4
    line.wake()
    await asyncio.gather(*waiting, newcomer)
    assert order == [0, 1, 2, 3, 9]
    assert len(line) == 0


async def test_nobody_asks_without_room_and_each_once_in_a_round() -> None:
    line, slots = WaitingLine(10, 30), Slots(0)
    room = False
    waiting = [asyncio.create_task(line.place(slots.choose, room=lambda: room)) for _ in range(5)]
    await settle()
    before = slots.asked
    line.wake()
    await settle()
    assert slots.asked == before
    room = True  # it looks so, and each is told otherwise
    line.wake()
    await settle()
    assert slots.asked == before + 5
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert len(line) == 0


async def test_one_that_no_free_replica_takes_holds_nobody_up() -> None:
    line, slots = WaitingLine(10, 30), Slots(0)
    refused = asyncio.create_task(line.place(slots.choose, room=lambda: False, shape="refused"))
    plain = [asyncio.create_task(line.place(slots.choose, room=lambda: slots.free > 0)) for _ in range(3)]
    await settle()
    slots.free = 3
    line.wake()
    await asyncio.wait_for(asyncio.gather(*plain), 5)
    assert not refused.done()
    slots.free = 1
    newcomer = asyncio.create_task(line.place(slots.choose, room=lambda: slots.free > 0))
    assert await asyncio.wait_for(newcomer, 5) == "placed"
    refused.cancel()


async def test_a_full_line_of_which_nobody_can_be_placed_turns_away_nobody_who_can() -> None:
    line, slots = WaitingLine(1, 30), Slots(0)
    refused = asyncio.create_task(line.place(slots.choose, room=lambda: False, shape="refused"))
    await settle()
    slots.free = 1
    assert await line.place(slots.choose, room=lambda: slots.free > 0) == "placed"
    with pytest.raises(QueueFull):
        await line.place(slots.choose, room=lambda: slots.free > 0)
    refused.cancel()


async def test_many_answers_of_one_client_do_not_stand_before_another() -> None:
    line, slots = WaitingLine(20, 30), Slots(0)
    order: list[str] = []

    async def one(owner: str, n: int) -> None:
        await line.place(slots.choose, owner=owner, n=n)
        order.append(owner)

    tasks = [asyncio.create_task(one("wide", 40)) for _ in range(3)]
    await settle()
    tasks += [asyncio.create_task(one("plain", 1)) for _ in range(3)]
    await settle()
    slots.free = 6
    line.wake()
    await asyncio.gather(*tasks)
    assert order == ["wide", "plain", "plain", "plain", "wide", "wide"]
    assert not line._ends


async def test_who_leaves_lets_the_next_ask() -> None:
    line, slots = WaitingLine(10, 30), Slots(0)
    first, second = (asyncio.create_task(line.place(slots.choose)) for _ in range(2))
    await settle()
    slots.free = 1
    first.cancel()
    assert await second == "placed"


async def test_a_wake_between_asking_and_waiting_is_not_lost() -> None:
    line, slots = WaitingLine(10, 30), Slots(0)

    async def choose() -> str:
        if slots.asked == 1:
            slots.free = 1
            line.wake()  # freed while the question was on its way
            slots.asked += 1
            raise QueueFull("full", code=SATURATED)
        return await slots.choose()

    assert await asyncio.wait_for(line.place(choose), 5) == "placed"


async def test_other_refusals_pass_at_once_and_long_waits_end() -> None:
    line = WaitingLine(10, 0.05)

    async def gone() -> None:
        raise NotReady("none", code="no_replica")

    with pytest.raises(NotReady):
        await line.place(gone)
    with pytest.raises(QueueFull, match="seconds"):
        await line.place(Slots(0).choose)
    assert line.refused == 1
    assert len(line) == 0
