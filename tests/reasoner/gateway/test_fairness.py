"""Two tenants at one gateway: what one of them holds, the other can still have."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.gateway import CHAT, OTHER_TOKEN, about, data_url, soon, text, video, world

from cosmos3_serve.errors import NotReady
from cosmos3_serve.reasoner.gateway.body import BodyBudget


def refused(budget: BodyBudget, size: int, tenant: str) -> bool:
    try:
        budget.take(size, tenant)
    except NotReady:
        return True
    return False


def test_one_tenants_bodies_leave_half_of_the_memory_to_others() -> None:
    now = 0.0
    budget = BodyBudget(100, clock=lambda: now)
    assert not refused(budget, 90, "one"), "alone it may have all"
    budget.give_back(90, "one")
    budget.take(1, "two")
    budget.give_back(1, "two")
    budget.take(50, "one")
    assert refused(budget, 1, "one")
    assert not refused(budget, 50, "two")
    assert budget.held == 100
    budget.give_back(50, "one")
    budget.give_back(50, "two")
    assert budget.held == 0
    now = 1000.0
    assert not refused(budget, 90, "one"), "the other one has not been here for long"


async def test_a_body_is_free_once_its_question_is_on_its_way(tmp_path: Path) -> None:
    async with world(tmp_path, replicas=1, slots=1) as here, here.client() as http, here.client(OTHER_TOKEN) as two:
        stub = here.replicas[0]
        stub.gate.clear()
        asked = asyncio.create_task(http.post(CHAT, json=about(data_url(video()))))
        await stub.until(lambda: stub.running == 1)
        await soon(lambda: here.front.budget.held == 0)
        waits = asyncio.create_task(two.post(CHAT, json=about(data_url(video(1)))))
        await soon(lambda: len(here.front.line) == 1)
        assert here.front.budget.held == 0, "its video is stored, and its question waits"
        stub.gate.set()
        for answer in await asyncio.gather(asked, waits):
            assert answer.status_code == 200
        assert len(stub.encoded) == 2, "the one that waited was sent from the store"
        assert (await http.post(CHAT, json=text())).status_code == 200
        assert here.front.budget.held == 0
