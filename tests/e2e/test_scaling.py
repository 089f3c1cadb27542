"""A fleet that follows its load on real Ray Serve: from none to one, to three, back to one, and asleep again, with no
failed question.

The engine is a double (`stub_engine.py`): what is tried is how many replicas there are, and who is asked meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.fleet import fake_engine
from support.gateway import CHAT, text
from support.processes import left_after, new_mark
from support.service import shared_cache

from cosmos3_serve.reasoner.local import LocalReasoner

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SESSIONS = [f"session-{number}" for number in range(6)]
HELD = 9  # answers that go on until they are told to end: the load of three replicas
WITHIN_S = 120.0


class Fleet(LocalReasoner):
    """The product's service with none to three replicas over the stub engine, and at most two gateways."""

    def __init__(self, cache_dir: Path, python: str, **more: str) -> None:
        self.mark = new_mark()
        environ = {
            "COSMOS3_REASONER_WORKERS": "0:3",
            "COSMOS3_REASONER_GATEWAYS": "2",
            "COSMOS3_REASONER_SCALE_LOAD": "3",
            "COSMOS3_REASONER_SCALE_DOWN_AFTER_S": "4",
            "COSMOS3_REASONER_MAX_NUM_SEQS": "16",
            "COSMOS3_VLLM_PYTHON": python,
        }
        super().__init__({**self.mark, **environ, **more}, cache_dir)

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, headers=self.headers, timeout=120)


@pytest.fixture
def fleet(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(shared_cache(tmp_path_factory), fake_engine(tmp_path, "stub_engine.py")) as running:
        yield running


class Users:
    """Sessions that ask all the time; nothing is repeated, what fails is counted."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.told: dict[str, list[tuple[str, str]]] = {name: [] for name in SESSIONS}
        self.failed: Counter[str] = Counter()
        self.stopped = False

    async def run(self, session: str) -> None:
        while not self.stopped:
            # A connection for each question: gateways that come get some, and those that go keep none.
            async with self.fleet.client() as http:
                try:
                    answer = await http.post(CHAT, json=text(), headers={"X-Session-ID": session})
                except httpx.HTTPError as error:
                    self.failed[type(error).__name__] += 1
                    continue
            if answer.status_code != 200:
                self.failed[f"{answer.status_code} {answer.text[:200]}"] += 1
            else:
                self.told[session].append((answer.headers["x-cosmos3-replica"], answer.headers["x-cosmos3-session"]))
            await asyncio.sleep(0.2)

    async def answered(self, more: int) -> None:
        before = {name: len(found) for name, found in self.told.items()}
        await until(lambda: all(len(self.told[name]) >= before[name] + more for name in SESSIONS))

    def homes(self) -> dict[str, str]:
        return {name: found[-1][0] for name, found in self.told.items()}


async def until(true: Callable[[], object], show: Callable[[], object] = lambda: "") -> None:
    deadline = time.monotonic() + WITHIN_S
    while not true():
        assert time.monotonic() < deadline, show()
        await asyncio.sleep(0.1)


async def report(http: httpx.AsyncClient) -> dict[str, Any]:
    answer = await http.get("/ready")
    waits = [check["name"] for check in answer.json()["checks"] if not check["ok"]]
    # A gateway that has just come has asked neither Serve nor a replica yet; questions are answered meanwhile.
    assert answer.status_code == 200 or set(waits) <= {"serve", "canary"}, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def has(fleet: Fleet, replicas: int) -> None:
    """Until so many replicas serve, and no place is left over."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        async with fleet.client() as http:
            found = (await report(http))["replicas"]
        if list(found.values()) == ["ready"] * replicas:
            return
        assert time.monotonic() < deadline, (found, fleet.log_tail(60))
        await asyncio.sleep(0.1)


async def hold(fleet: Fleet, enough: Path) -> str:
    async with (
        fleet.client() as http,
        http.stream("POST", CHAT, json=text(f"until={enough}", stream=True)) as told,
    ):
        assert told.status_code == 200, await told.aread()
        return "".join([piece async for piece in told.aiter_text()])


async def test_a_fleet_sleeps_wakes_grows_and_shrinks_with_its_load(fleet: Fleet, tmp_path: Path) -> None:
    began = time.monotonic()
    assert fleet.ready["replicas"] == []
    async with fleet.client() as http:
        assert (await report(http))["workers"] == "0:3"
        asleep = await http.post(CHAT, json=text())
        assert (asleep.status_code, asleep.json()["error"]["code"]) == (503, "no_replica")
        assert int(asleep.headers["retry-after"]) >= 1
    await has(fleet, 1)  # by that question alone
    print(f"woke within {time.monotonic() - began:.1f} s")

    users, enough = Users(fleet), tmp_path / "enough"
    tasks = [asyncio.create_task(users.run(name)) for name in SESSIONS]
    try:
        await users.answered(3)
        assert len(set(users.homes().values())) == 1
        mark = time.monotonic()
        held = [asyncio.create_task(hold(fleet, enough)) for _ in range(HELD)]
        await has(fleet, 3)
        print(f"three within {time.monotonic() - mark:.1f} s")
        await users.answered(3)
        assert all(outcome != "moved" for found in users.told.values() for _, outcome in found), "nobody moves to grow"
        async with fleet.client() as http:  # new sessions settle with whoever came
            newcomers = [await http.post(CHAT, json=text(), headers={"X-Session-ID": f"new-{n}"}) for n in range(9)]
        assert len({answer.headers["x-cosmos3-replica"] for answer in newcomers}) == 3
        enough.touch()
        for body in await asyncio.gather(*held):
            assert body.rstrip().endswith("[DONE]") and '"error"' not in body
        mark = time.monotonic()
        await has(fleet, 1)
        print(f"one within {time.monotonic() - mark:.1f} s")
        await users.answered(3)
        async with fleet.client() as http:
            moved = [await http.post(CHAT, json=text(), headers={"X-Session-ID": f"new-{n}"}) for n in range(9)]
        assert {answer.status_code for answer in moved} == {200}
    finally:
        users.stopped = True
        await asyncio.gather(*tasks)
    assert users.failed == {}
    for name, found in users.told.items():
        changes = sum(one[0] != other[0] for one, other in pairwise(found))
        assert changes == [outcome for _, outcome in found].count("moved") <= 1, (name, found)
    answers = sum(map(len, users.told.values()))

    mark = time.monotonic()
    await has(fleet, 0)  # and /ready stays 200
    print(f"asleep within {time.monotonic() - mark:.1f} s; {answers} answers")
    async with fleet.client() as http:
        assert (await http.post(CHAT, json=text())).status_code == 503
    await has(fleet, 1)
    fleet.terminate()
    assert await asyncio.to_thread(fleet.wait, 120) == 0
    assert left_after(fleet.mark) == {}


async def test_a_fleet_that_cannot_start_says_so_and_tries_anew_after_its_sleep(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    refuses = {"COSMOS3_VLLM_ARGS": "--behave model", "COSMOS3_REASONER_START_TIMEOUT_S": "8"}

    async def wake(http: httpx.AsyncClient) -> None:
        assert (await http.post(CHAT, json=text())).status_code == 503
        async with asyncio.timeout(WITHIN_S):
            while (answer := await http.get("/ready")).status_code == 200:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert [c["name"] for c in answer.json()["checks"] if not c["ok"]] == ["replicas"]
        async with asyncio.timeout(WITHIN_S):  # asleep again
            while (await http.get("/ready")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    with Fleet(shared_cache(tmp_path_factory), fake_engine(tmp_path), **refuses) as fleet:
        async with fleet.client() as http:
            await wake(http)
            await wake(http)
