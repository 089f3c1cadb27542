"""IngressReplica without Ray: what it does with an engine that answers late, or never may."""

from types import SimpleNamespace
from typing import Any

import pytest

from cosmos3_serve.errors import EngineFailed, StartRefused
from cosmos3_serve.generator.http import ingress as module
from cosmos3_serve.generator.http.ingress import IngressReplica


class Engine:
    """Answers with each of `said` in turn."""

    def __init__(self, *said: Any) -> None:
        self.said = list(said)

    async def info(self) -> Any:
        answer = self.said.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def ingress(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    replica: Any = IngressReplica.__new__(IngressReplica)
    replica._engine, replica._front = engine, SimpleNamespace(engine=None)
    replica._checks = SimpleNamespace(failure=None)
    return replica


async def test_it_asks_until_the_weights_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = ingress(Engine(EngineFailed("loading"), TimeoutError(), "the info"), monkeypatch)
    await replica._learn_engine()
    assert replica._front.engine == "the info"


async def test_a_device_that_is_no_target_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = StartRefused("no target", code="unsupported_gpu", remedy="another card")
    replica = ingress(Engine(EngineFailed("loading"), refusal), monkeypatch)

    async def start() -> None:
        pass

    replica._coordinator = SimpleNamespace(start=start)
    await replica._begin()
    assert replica._checks.failure is refusal and replica._front.engine is None


async def test_a_start_that_breaks_is_told_to_the_health_check(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = ingress(Engine(), monkeypatch)

    async def start() -> None:
        raise TypeError("as told")

    replica._coordinator = SimpleNamespace(start=start, failure=None)
    await replica._begin()
    assert "TypeError" in replica._checks.failure.detail
    with pytest.raises(RuntimeError):
        await replica.check_health()


async def test_a_coordinator_that_broke_is_told_to_the_health_check(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = ingress(Engine(), monkeypatch)
    replica._coordinator = SimpleNamespace(failure=EngineFailed("broke"))
    with pytest.raises(RuntimeError, match="broke"):
        await replica.check_health()
