"""Control: what a running service does to its own deployments on Ray."""

from __future__ import annotations

from typing import Any

from cosmos3_serve.reasoner.application import ONE_MORE, gateways
from cosmos3_serve.reasoner.fleet.core import Overview
from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef
from cosmos3_serve.reasoner.setup import NAMESPACE, ReasonerSetup

ASK_S = 10.0


class RayControl:
    """
    Args:
        gateway: class of the gateways' deployment, constructed with a `ReasonerSetup`.
    """

    def __init__(self, setup: ReasonerSetup, gateway: type[Any]) -> None:
        self._setup, self._gateway = setup, gateway

    def deploy(self) -> None:
        """Gateways and replicas. Does not wait: gateways answer while replicas load."""
        self._run(self._gateways(), self._replicas())

    # Whatever is deployed again is a new version to Serve, which then replaces what runs.

    def replicas(self, *, surge: bool) -> None:
        self._run(self._replicas(ONE_MORE if surge else 0))

    def gateways(self) -> None:
        self._run(self._gateways())

    def mark(self, yes: bool) -> tuple[ReplicaRef, ...]:
        found: tuple[ReplicaRef, ...] = ask_fleet(self._setup.names.registry, "renew", yes)
        return found

    def overview(self) -> Overview:
        return overview(self._setup.names.registry)

    def room(self) -> bool:
        """A free GPU where replicas have one each; else the processor is shared anyhow."""
        import ray

        gpus: float = ray.cluster_resources().get("GPU", 0)
        free: float = ray.available_resources().get("GPU", 0)
        return gpus < 1 or free >= 1

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _run(self, *targets: Any) -> None:
        from ray import serve

        serve.run_many(targets, wait_for_applications_running=False)

    def _replicas(self, surge_percent: int = 0) -> Any:
        from ray import serve

        from cosmos3_serve.reasoner.engine.replica import replica_deployment

        made = replica_deployment(self._setup, surge_percent)
        return serve.RunTarget(made, name=self._setup.names.replicas, route_prefix=None)

    def _gateways(self) -> Any:
        from ray import serve

        return serve.RunTarget(gateways(self._setup, self._gateway), name=self._setup.names.gateways, route_prefix=None)


def overview(registry: str) -> Overview:
    """What the registry knows now. Raises whatever Ray raises when it is away."""
    found: Overview = ask_fleet(registry, "overview")
    return found


def ask_fleet(registry: str, method: str, *args: Any) -> Any:
    """One call of the registry. Raises as `overview`."""
    import ray

    actor = ray.get_actor(registry, namespace=NAMESPACE)
    return ray.get(getattr(actor, method).remote(*args), timeout=ASK_S)
