"""Scaling with load, by Ray Serve: its controller asks these policies how many replicas and gateways there are to be.

Serve's own figures know nothing of questions, which do not pass through it: the policies ask the fleet's registry,
whom gateways tell. Nothing here waits, since the controller's loop would wait with it: an answer that has not come yet
is looked for the next time, and without one the fleet stays as it is.
"""

from __future__ import annotations

import time
from typing import Any

from cosmos3_serve.reasoner.fleet.member import Demand
from cosmos3_serve.reasoner.fleet.scaling import Sizing, gateways_for, scaling_of
from cosmos3_serve.reasoner.setup import NAMESPACE, ReasonerSetup
from cosmos3_serve.settings import WorkerRange

ASK_EVERY_S = 0.5
STALE_S = 5.0


class Registry:
    """The demand as the registry last told it.

    Args:
        fleet: name of the registry's actor.
    """

    def __init__(self, fleet: str) -> None:
        self._fleet = fleet
        self._handle: Any = None
        self._asked: Any = None  # a future
        self._asked_at = float("-inf")
        self._told: tuple[float, Demand] | None = None

    def demand(self, now: float) -> Demand | None:
        """None: not told within the last seconds."""
        if self._asked is not None and self._asked.done():
            asked, self._asked = self._asked, None
            try:
                self._told = (self._asked_at, asked.result())
            except Exception:  # it restarts, or another has taken its name
                self._handle = None
        return self._told[1] if self._told is not None and now - self._told[0] < STALE_S else None

    def ask(self, now: float, wanted: int | None, *, at_once: bool = False) -> None:
        """Ask for the next time, and say how many replicas are wanted."""
        due = now - self._asked_at >= (ASK_EVERY_S if self._asked is None else STALE_S)
        if not (due or at_once):
            return
        import ray

        try:
            if self._handle is None:
                self._handle = ray.get_actor(self._fleet, namespace=NAMESPACE)
            self._asked, self._asked_at = self._handle.demand.remote(wanted).future(), now
        except Exception:
            self._handle, self._asked, self._asked_at = None, None, now


class ReplicaPolicy:
    """How many replicas. Serve constructs it anew with each deployment.

    Args:
        fleet: as `Registry`; `scaling`: as `Sizing`.
    """

    def __init__(self, fleet: str, scaling: dict[str, Any]) -> None:
        self._registry, self._sizing = Registry(fleet), Sizing(**scaling)
        self._wanted: int | None = None

    def __call__(self, ctx: Any) -> tuple[int, dict[str, Any]]:
        now = time.monotonic()
        least, most = ctx.capacity_adjusted_min_replicas, ctx.capacity_adjusted_max_replicas
        demand = self._registry.demand(now)
        wanted = self._sizing.wanted(demand, ctx.target_num_replicas, ctx.current_num_replicas, now, least, most)
        # Before Serve acts on it: replicas that are about to go are then known together.
        self._registry.ask(now, wanted, at_once=wanted != self._wanted)
        self._wanted = wanted
        return wanted, {}


class GatewayPolicy:
    """How many gateways: in proportion to the replicas that are wanted.

    Args:
        workers: fewest and most replicas; `gateways`: the most.
    """

    def __init__(self, fleet: str, workers: list[int], gateways: int) -> None:
        self._registry, self._workers, self._gateways = Registry(fleet), WorkerRange(*workers), gateways

    def __call__(self, ctx: Any) -> tuple[int, dict[str, Any]]:
        now = time.monotonic()
        demand = self._registry.demand(now)
        self._registry.ask(now, None)
        if demand is None or not demand.settled:
            return ctx.target_num_replicas, {}
        return gateways_for(self._gateways, self._workers, demand.wanted), {}


def replica_scaling(setup: ReasonerSetup) -> dict[str, Any]:
    """Serve's options for the number of replicas."""
    settings = setup.settings
    workers = settings.workers
    if not workers.scales:
        return {"num_replicas": workers.most}
    kwargs = {"fleet": setup.names.registry, "scaling": dict(scaling_of(settings))}
    return _followed(ReplicaPolicy, workers.least, workers.most, kwargs)


def gateway_scaling(setup: ReasonerSetup) -> dict[str, Any]:
    """Serve's options for the number of gateways."""
    settings = setup.settings
    workers, most = settings.workers, settings.gateways
    least = gateways_for(most, workers, workers.least)
    if least == most:
        return {"num_replicas": most}
    kwargs = {"fleet": setup.names.registry, "workers": [workers.least, workers.most], "gateways": most}
    return _followed(GatewayPolicy, least, most, kwargs)


def _followed(policy: type[Any], least: int, most: int, kwargs: dict[str, Any]) -> dict[str, Any]:
    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

    config = AutoscalingConfig(
        min_replicas=least,
        max_replicas=most,
        # The policies' answers are steady already.
        upscale_delay_s=0.0,
        downscale_delay_s=0.0,
        policy=AutoscalingPolicy(policy_function=f"{__name__}.{policy.__name__}", policy_kwargs=kwargs),
    )
    return {"autoscaling_config": config}
