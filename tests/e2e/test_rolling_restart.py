"""A rolling restart of the reasoner under load, on real Ray: no failed request, sessions move once, an answer of a
minute survives. The generator's restart is in tests/faults/test_generator_restart.py.

The engine is a double (`stub_engine.py`): what is tried is who is asked, and when whom ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.fleet import fake_engine
from support.gateway import CHAT, text
from support.processes import left_after, new_mark
from support.service import shared_cache

from cosmos3_serve.reasoner.local import LocalReasoner

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SESSIONS = [f"session-{number}" for number in range(6)]
MINUTE_S = 60
BUSY_S, QUIET_S = 0.2, 1.0  # a session's pause between an answer and the next question
LINGERED_S = 8.0  # a gateway that has nothing to answer is gone by then
RENEWED_S = 540.0  # four processes start one after another, and a minute's answer is waited for


class Fleet(LocalReasoner):
    """The product's service with two replicas over the stub engine, and two gateways."""

    def __init__(self, cache_dir: Path, python: str) -> None:
        self.mark = new_mark()
        environ = {
            "COSMOS3_REASONER_WORKERS": "2",
            "COSMOS3_REASONER_GATEWAYS": "2",
            "COSMOS3_REASONER_DRAIN_TIMEOUT_S": "120",
            "COSMOS3_VLLM_PYTHON": python,
        }
        super().__init__({**self.mark, **environ}, cache_dir)
        self._told: list[dict[str, Any]] = []
        self._read = 0

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log's lines of one event. Lines of requests, which are thousands, are read once and not kept."""
        with self.log_path.open("rb") as log:
            log.seek(self._read)
            for line in log:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                if line.startswith(b"{") and b'"event": "http"' not in line:
                    self._told.append(json.loads(line))
        return [line for line in self._told if line.get("event") == name]


@pytest.fixture
def fleet(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(shared_cache(tmp_path_factory), fake_engine(tmp_path, "stub_engine.py")) as running:
        yield running


class Load:
    """Sessions that ask all the time, and what they were told. No request is repeated here: what fails is counted."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.outcomes: dict[str, list[str]] = {name: [] for name in SESSIONS}
        self.homes: dict[str, list[str]] = {name: [] for name in SESSIONS}
        self.failed: Counter[str] = Counter()
        self.pause_s = BUSY_S
        self.stopped = False

    async def run(self, session: str) -> None:
        async with httpx.AsyncClient(base_url=self.fleet.url, headers=self.fleet.headers, timeout=60) as http:
            while not self.stopped:
                try:
                    told = await http.post(CHAT, json=text(), headers={"X-Session-ID": session})
                except httpx.HTTPError as error:
                    self.failed[type(error).__name__] += 1
                    continue
                if told.status_code != 200:
                    self.failed[f"{told.status_code} {told.text[:200]}"] += 1
                    continue
                self.outcomes[session].append(told.headers["x-cosmos3-session"])
                self.homes[session].append(told.headers["x-cosmos3-replica"])
                await asyncio.sleep(self.pause_s)

    def way(self, session: str) -> list[tuple[str, str]]:
        """Where a session was answered and what it was told, without repetitions."""
        told = list(zip(self.homes[session], self.outcomes[session], strict=True))
        return [pair for number, pair in enumerate(told) if number == 0 or pair != told[number - 1]]

    async def answered(self, more: int) -> None:
        """Until every session has had so many more answers."""
        before = {name: len(found) for name, found in self.outcomes.items()}
        async with asyncio.timeout(120):
            while any(len(self.outcomes[name]) < before[name] + more for name in SESSIONS):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


@asynccontextmanager
async def under_load(fleet: Fleet) -> AsyncIterator[Load]:
    load = Load(fleet)
    tasks = [asyncio.create_task(load.run(name)) for name in SESSIONS]
    try:
        yield load
    finally:
        load.stopped = True
        await asyncio.gather(*tasks)


async def long_answer(fleet: Fleet, question: str, begun: asyncio.Event) -> tuple[str, float]:
    """The text of an answer that takes long, and how long it took. Raises what breaks it."""
    began = time.monotonic()
    async with (
        httpx.AsyncClient(base_url=fleet.url, headers=fleet.headers, timeout=60) as http,
        http.stream("POST", CHAT, json=text(question, stream=True)) as told,
    ):
        assert told.status_code == 200
        body = ""
        async for piece in told.aiter_text():
            body += piece
            begun.set()
    return body, time.monotonic() - began


def assert_whole(body: str, at_least: int) -> None:
    assert body.rstrip().endswith("[DONE]")
    assert '"error"' not in body
    said = [int(number) for number in re.findall(r"word-(\d+) ", body)]
    assert len(said) >= at_least
    assert said == list(range(len(said)))


async def test_replicas_and_gateways_are_renewed_under_load(fleet: Fleet, tmp_path: Path) -> None:
    enough = tmp_path / "enough"
    async with under_load(fleet) as load:
        await load.answered(5)
        assert {home for found in load.homes.values() for home in found} == {"replica-0", "replica-1"}
        begun = asyncio.Event()
        minute = asyncio.create_task(long_answer(fleet, f"take={MINUTE_S}", begun))
        await begun.wait()
        os.kill(fleet.pid, signal.SIGUSR1)
        began = time.monotonic()
        gateways: asyncio.Task[tuple[str, float]] | None = None
        left_at: float | None = None
        while not fleet.events("renewed"):
            now = time.monotonic()
            assert now - began < RENEWED_S, fleet.log_tail(60)
            assert not fleet.events("renewal_given_up")
            steps = [(e["of"], e["fresh"], e["left"]) for e in fleet.events("renewal")]
            waits = ("replicas", 2, 1) in steps
            # Nothing but the minute's answer is waited for then: until shortly before its end nothing can happen.
            load.pause_s = QUIET_S if waits and now - began < MINUTE_S - 10 else BUSY_S
            if gateways is None and waits:  # by a fresh replica, through an old gateway
                gateways = asyncio.create_task(long_answer(fleet, f"until={enough}", asyncio.Event()))
            if left_at is None and len(fleet.events("gateway_leaves")) == 2:
                left_at = now
            if left_at is not None and now - left_at > LINGERED_S:
                enough.touch()
            await asyncio.sleep(0.5)
        assert enough.exists(), "it did not wait for the gateway that still answers"
        await load.answered(5)
        body, seconds = await minute
        assert gateways is not None
        other, _ = await gateways
    print(f"renewed in {time.monotonic() - began:.0f} s; answers: {sum(map(len, load.outcomes.values()))}")
    assert load.failed == {}
    for name in SESSIONS:
        print(name, load.way(name))
    assert {name: found.count("moved") for name, found in load.outcomes.items()} == dict.fromkeys(SESSIONS, 1)
    assert seconds >= MINUTE_S
    assert_whole(body, MINUTE_S)
    assert_whole(other, 20)
    assert len(fleet.events("gateway_started")) == 4
    assert len(fleet.events("gateway_leaves")) == 2
    assert fleet.events("drain_incomplete") == []
    fleet.terminate()
    assert await asyncio.to_thread(fleet.wait, 120) == 0
    assert left_after(fleet.mark) == {}
