"""How a replica ends when Serve ends it: it drains, unless the whole service has done so already."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from cosmos3_serve.reasoner.engine import replica
from cosmos3_serve.reasoner.fleet.core import FleetAway, FleetCore, InProcessFleet
from cosmos3_serve.reasoner.sessions.policy import AffinityRules
from cosmos3_serve.settings import ReasonerSettings


class Engine:
    """A double that is busy or not."""

    def __init__(self, notes: list[str], busy: bool) -> None:
        self.notes, self.busy = notes, busy

    async def drained(self, grace_s: float) -> bool:
        self.notes.append(f"waits {grace_s:g}")
        return not self.busy

    async def stop(self, grace_s: float) -> None:
        self.notes.append("engine stops")


class Reporter:
    def __init__(self, notes: list[str]) -> None:
        self.notes = notes

    async def drain(self) -> None:
        self.notes.append("draining")

    async def leave(self) -> None:
        self.notes.append("left")


class Away:
    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        raise FleetAway


def made(notes: list[str], fleet: Any, *, busy: bool = False, hangs: bool = False) -> SimpleNamespace:
    hung = asyncio.Event()
    if hangs:
        hung.set()
    parts = SimpleNamespace(
        _hung=hung,
        _engine=Engine(notes, busy),
        _reporter=Reporter(notes),
        _watch=SimpleNamespace(cancel=lambda: None),
        _settings=ReasonerSettings(drain_timeout_s=77),
        _fleet=fleet,
    )
    parts._service_ends = partial(replica.ReasonerReplica._service_ends, parts)
    return parts


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "HEARD_S", 0.01)


@pytest.mark.parametrize("busy", [False, True])
async def test_it_gives_answers_the_time_that_the_operator_gave(busy: bool) -> None:
    notes: list[str] = []
    core = FleetCore(AffinityRules(), 1)
    await replica.ReasonerReplica.__del__(made(notes, InProcessFleet(core), busy=busy))
    assert notes == ["draining", "waits 77", "left", "engine stops"]


async def test_nothing_is_waited_for_where_the_engine_hangs() -> None:
    notes: list[str] = []
    core = FleetCore(AffinityRules(), 1)
    await replica.ReasonerReplica.__del__(made(notes, InProcessFleet(core), busy=True, hangs=True))
    assert notes == ["draining", "left", "engine stops"]


async def test_it_does_not_wait_again_where_the_whole_service_has_drained() -> None:
    notes: list[str] = []
    core = FleetCore(AffinityRules(), 1)
    await core.end()
    await replica.ReasonerReplica.__del__(made(notes, InProcessFleet(core)))
    assert notes == ["draining", "left", "engine stops"]


async def test_a_registry_that_is_away_does_not_cut_answers() -> None:
    notes: list[str] = []
    await replica.ReasonerReplica.__del__(made(notes, Away()))
    assert "waits 77" in notes


async def test_one_whose_engine_never_started_has_nothing_to_end() -> None:
    await replica.ReasonerReplica.__del__(SimpleNamespace())
