"""Which service is next, and which one not for a while."""

from __future__ import annotations

import asyncio

import pytest

from cosmos3_serve.errors import QueueFull, Unreachable
from cosmos3_serve.queue import endpoints as module
from cosmos3_serve.queue.endpoints import AWAY_S, Endpoint, Fleet


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def answers(endpoint: str) -> bool:
    return endpoint != "b"


def fleet_of(*names: str, slots: int = 2) -> tuple[Fleet, Clock]:
    clock = Clock()
    return Fleet([Endpoint(name) for name in names], slots, answers, clock), clock


def taken(fleet: Fleet, preferred: str = "") -> str | None:
    endpoint = fleet.pick(preferred)
    if endpoint is None:
        return None
    endpoint.running += 1
    return endpoint.address


def test_parts_are_spread_and_bounded() -> None:
    fleet, _ = fleet_of("a", "b", "c")
    assert [taken(fleet) for _ in range(7)] == ["a", "b", "c", "a", "b", "c", None]


def test_a_part_returns_to_its_service_while_that_has_room() -> None:
    fleet, _ = fleet_of("a", "b")
    assert [taken(fleet, "b") for _ in range(3)] == ["b", "b", "a"]


def test_a_service_that_failed_is_left_alone_longer_each_time() -> None:
    fleet, clock = fleet_of("a")
    waits = []
    for _ in range(8):
        fleet.failed(fleet.endpoints[0], Unreachable("away"))
        waits.append(fleet.endpoints[0].away_until - clock.now)
        assert fleet.pick() is None
        clock.now = fleet.endpoints[0].away_until
        assert fleet.pick() is not None
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == AWAY_S
    fleet.worked(fleet.endpoints[0])
    fleet.failed(fleet.endpoints[0], QueueFull("full", retry_after_s=30))
    assert fleet.endpoints[0].away_until - clock.now == 30


async def test_a_silent_service_is_told_of_only_while_another_one_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WATCH_S", 0.001)

    async def down(*names: str) -> list[str]:
        fleet, _ = fleet_of(*names)
        told: list[str] = []
        fleet.on_down = lambda endpoint: told.append(endpoint.address)
        for endpoint in fleet.endpoints:
            endpoint.running = 1
        watch = asyncio.create_task(fleet.watch())
        await asyncio.sleep(0.05)
        watch.cancel()
        return told

    assert "b" in await down("a", "b")
    assert set(await down("a", "b")) == {"b"}
    assert await down("b") == []
