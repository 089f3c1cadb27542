"""Serve's view of the range: its configuration, and the policies over doubles of the registry's actor."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray import cloudpickle
from ray.serve.config import AutoscalingConfig

from cosmos3_serve.reasoner import autoscaling
from cosmos3_serve.reasoner.autoscaling import GatewayPolicy, ReplicaPolicy, gateway_scaling, replica_scaling
from cosmos3_serve.reasoner.fleet.member import Demand
from cosmos3_serve.reasoner.setup import ReasonerSetup, ServedModel
from cosmos3_serve.settings import ReasonerSettings

MODEL = ServedModel("tiny", "r", "d", "random", Path("here"), 1024)
SCALING = {"scale_load": 2, "keep_s": 10.0, "start_s": 60.0}


def setup(**given: Any) -> ReasonerSetup:
    return ReasonerSetup(ReasonerSettings.load(given, environ={}), MODEL, 8000, "secret")


class Actor:
    """A double of the registry's actor: what it was told, and answers that come when the test says so."""

    def __init__(self, demand: Demand) -> None:
        self.tells, self.told, self.late = demand, [], False
        self.demand = SimpleNamespace(remote=self._asked)
        self.futures: list[Future[Demand]] = []

    def _asked(self, wanted: int | None) -> Any:
        self.told.append(wanted)
        future: Future[Demand] = Future()
        self.futures.append(future)
        if not self.late:
            future.set_result(self.tells)
        return SimpleNamespace(future=lambda: future)


class Clock:
    now = 50.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(autoscaling.time, "monotonic", lambda: found.now)
    return found


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> Actor:
    found = Actor(Demand(answers=6, asked=False, seqs=8, wanted=3, settled=True))
    monkeypatch.setattr(ray, "get_actor", lambda name, namespace: found)
    return found


def context(target: int) -> Any:
    bounds = {"capacity_adjusted_min_replicas": 1, "capacity_adjusted_max_replicas": 4}
    return SimpleNamespace(target_num_replicas=target, current_num_replicas=target, **bounds)


def run(policy: Any, clock: Clock, target: int, seconds: float) -> int:
    for _ in range(int(seconds * 10)):
        target, _ = policy(context(target))
        clock.now += 0.1
    return target


def test_a_fixed_number_is_serves_own() -> None:
    assert replica_scaling(setup(workers="4")) == {"num_replicas": 4}
    assert gateway_scaling(setup(workers="4", gateways=3)) == {"num_replicas": 3}
    assert gateway_scaling(setup(workers="2:8", gateways=1)) == {"num_replicas": 1}


def test_a_range_is_serves_range_with_our_policy() -> None:
    made = setup(workers="0:4", gateways=2, scale_load=9, scale_down_after_s=30)
    config: AutoscalingConfig = replica_scaling(made)["autoscaling_config"]
    assert (config.min_replicas, config.max_replicas, config.initial_replicas) == (0, 4, None)
    # As the controller gets it: by value, and made there.
    policy = cloudpickle.loads(config.policy.get_serialized_policy_def())(**config.policy.policy_kwargs)
    assert type(policy).__name__ == ReplicaPolicy.__name__
    front: AutoscalingConfig = gateway_scaling(made)["autoscaling_config"]
    assert (front.min_replicas, front.max_replicas) == (1, 2)
    other = cloudpickle.loads(front.policy.get_serialized_policy_def())(**front.policy.policy_kwargs)
    assert type(other).__name__ == GatewayPolicy.__name__


def test_the_fleet_follows_what_gateways_count_and_the_registry_hears_it_before_serve_acts(
    clock: Clock, actor: Actor
) -> None:
    policy = ReplicaPolicy("fleet", SCALING)
    assert run(policy, clock, 1, 7) == 3
    assert actor.told[-1] == 3
    actor.tells = Demand(0, False, 8, 3, settled=True)
    asked = len(actor.told)
    assert run(policy, clock, 3, 12) == 1
    assert actor.told[asked:].index(1) <= 22, "told with the decision, not with the next look"


def test_a_registry_that_hangs_or_recovers_changes_nothing_and_is_not_asked_without_end(
    clock: Clock, actor: Actor
) -> None:
    policy = ReplicaPolicy("fleet", SCALING)
    actor.late = True
    assert run(policy, clock, 2, 60) == 2
    assert len(actor.told) <= 13
    actor.late, actor.tells = False, Demand(0, False, 0, 4, settled=False)
    assert run(policy, clock, 2, 60) == 2


def test_an_actor_that_cannot_be_found_is_looked_for_again(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []

    def none(name: str, namespace: str) -> Any:
        looked.append(name)
        raise ValueError("no such actor")

    monkeypatch.setattr(ray, "get_actor", none)
    assert run(ReplicaPolicy("fleet", SCALING), clock, 2, 6) == 2
    assert len(looked) >= 2


def test_gateways_follow_the_replicas(clock: Clock, actor: Actor) -> None:
    policy = GatewayPolicy("fleet", [1, 4], 4)
    assert run(policy, clock, 1, 2) == 3
    assert set(actor.told) == {None}, "it decides nothing about replicas"
