"""The one Ray actor that holds the fleet, and the way other processes call it."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import structlog

from cosmos3_serve.reasoner.fleet.core import FleetAway, FleetCore
from cosmos3_serve.reasoner.sessions.policy import AffinityRules
from cosmos3_serve.reasoner.setup import NAMESPACE
from cosmos3_serve.service import logs
from cosmos3_serve.settings import WorkerRange

log = structlog.get_logger(__name__)

STOP_TRIES = 100
# The cluster ends with its head, where Serve's controller lives too. On any other node the registry would be lost with
# it, and nobody left who notices which replicas were: Ray takes a minute to start it again.
HEAD = "node:__internal_head__"
CONCURRENT_CALLS = 10_000  # a watching gateway holds one all the time


class FleetActor(FleetCore):
    """`FleetCore` in an actor of its own; Ray starts it again, empty, whenever its process dies."""

    def __init__(self, rules: AffinityRules, workers: WorkerRange, log_level: str, run: str, declared: bool) -> None:
        import ray

        logs.configure(log_level)
        again = bool(ray.get_runtime_context().was_current_actor_reconstructed)
        # How large the fleet was is known again within a second: until then no replica that may live is left out.
        super().__init__(rules, workers.most if again else workers.least, run=run, recovering=again)
        self._declared = declared
        log.info("fleet_registry_started", again=again)

    async def declared(self) -> bool:
        """Whether the cluster's own tools have deployed the service, and keep it as it is declared."""
        return self._declared


def start_fleet_actor(
    name: str, rules: AffinityRules, workers: WorkerRange, log_level: str, *, declared: bool = False
) -> RayFleet:
    """Start the actor; one that an earlier service of this name left behind is ended first."""
    import ray

    stop_fleet_actor(name)
    ray.remote(FleetActor).options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",  # lives as long as somebody may ask it, not as long as a handle
        max_restarts=-1,
        num_cpus=0,
        resources={HEAD: 0.001},
        max_concurrency=CONCURRENT_CALLS,
    ).remote(rules, workers, log_level, uuid.uuid4().hex, declared)
    return RayFleet(name)


def stop_fleet_actor(name: str) -> None:
    import ray

    for _ in range(STOP_TRIES):
        try:
            ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)
        except ValueError:
            return  # there is none, or none any more: the name is free
        time.sleep(0.1)


class RayFleet:
    """`FleetCalls` over the actor's name. One instance belongs to one event loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._handle: Any = None

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """
        Raises:
            FleetAway: no actor, or no answer within `timeout_s`. The call may still be carried out later.
        """
        import ray
        from ray.exceptions import ActorDiedError, RayError

        try:
            async with asyncio.timeout(timeout_s):
                if self._handle is None:
                    self._handle = await asyncio.to_thread(ray.get_actor, self._name, NAMESPACE)
                return await getattr(self._handle, method).remote(*args)
        except ActorDiedError:
            self._handle = None  # for good: perhaps another took the name
            raise FleetAway from None
        except (TimeoutError, RayError, ValueError) as error:
            log.debug("fleet_registry_away", call=method, exception=type(error).__name__)
            raise FleetAway from None
