"""How the ingress replica ends when Serve ends it: as when the service ends, once, whoever asked first."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace

from cosmos3_serve.generator.http.ingress import IngressReplica
from cosmos3_serve.settings import GeneratorSettings


class Part:
    """A double of what is drained and closed; notes its calls."""

    def __init__(self, notes: list[str], name: str) -> None:
        self._notes, self._name = notes, name
        self.gate = asyncio.Event()
        self.gate.set()

    async def drain(self, timeout_s: float) -> None:
        self._notes.append(f"{self._name} drains {timeout_s:g}")
        await self.gate.wait()

    async def stop(self, grace_s: float) -> None:
        self._notes.append(f"{self._name} stops")

    async def close(self) -> None:
        self._notes.append(f"{self._name} closes")


def replica(notes: list[str]) -> SimpleNamespace:
    made = SimpleNamespace(
        _settings=GeneratorSettings(drain_timeout_s=33),
        _front=SimpleNamespace(draining=False),
        _coordinator=Part(notes, "coordinator"),
        _server=Part(notes, "server"),
        _canary=Part(notes, "canary"),
        _tasks=[],
        _draining=None,
    )
    made._drain = partial(IngressReplica._drain, made)
    made.drain = partial(IngressReplica.drain, made)
    return made


async def test_serve_gives_it_the_time_that_the_operator_gave() -> None:
    notes: list[str] = []
    made = replica(notes)
    await IngressReplica.__del__(made)
    assert notes == ["coordinator drains 33", "server stops", "canary closes", "coordinator closes"]
    assert made._front.draining


async def test_it_drains_once_and_both_who_asked_wait_for_the_end() -> None:
    notes: list[str] = []
    made = replica(notes)
    made._coordinator.gate.clear()
    first = asyncio.create_task(made.drain(5))
    await asyncio.sleep(0)
    second = asyncio.create_task(IngressReplica.__del__(made))
    await asyncio.sleep(0.01)
    assert not (first.done() or second.done())
    first.cancel()  # whoever waits may go; the drain goes on
    made._coordinator.gate.set()
    await second
    assert notes.count("coordinator drains 5") == 1
    assert notes[-1] == "coordinator closes"


async def test_one_that_was_never_built_has_nothing_to_end() -> None:
    await IngressReplica.__del__(SimpleNamespace())
