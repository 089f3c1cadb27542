"""RayReplicas: which devices the workers have. Finding and killing them runs on real Ray in tests/e2e."""

from types import SimpleNamespace

import pytest
import ray

from cosmos3_serve.errors import EngineFailed
from cosmos3_serve.generator.engines.framework import replicas as module
from cosmos3_serve.generator.engines.framework.replicas import RayReplicas

HERE, THERE = [{"name": "here", "compute_capability": "9.0"}], [{"name": "there", "compute_capability": "12.0"}]


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nodes of the living workers; tests fill it."""
    nodes: list[str] = []
    monkeypatch.delenv("COSMOS_DEVICE", raising=False)
    monkeypatch.setattr(RayReplicas, "_workers", lambda _: [{"Address": {"NodeID": node}} for node in nodes])
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "a"))
    monkeypatch.setattr(module, "accelerators", lambda: HERE)
    monkeypatch.setattr(module, "_devices_of", lambda node: THERE)
    return nodes


def replicas() -> RayReplicas:
    return RayReplicas("app", "model", 1)


def test_each_machine_that_has_a_worker_is_asked_once(workers: list[str]) -> None:
    workers += ["a", "a", "b"]
    assert replicas().devices() == HERE + THERE
    workers[:] = ["b"]
    assert replicas().devices() == THERE


def test_workers_that_are_not_in_the_table_yet_are_no_cpu(workers: list[str]) -> None:
    with pytest.raises(EngineFailed):
        replicas().devices()


def test_upstreams_own_variable_puts_it_on_the_cpu(workers: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    workers.append("a")
    monkeypatch.setenv("COSMOS_DEVICE", "cpu")
    assert replicas().devices() == []
