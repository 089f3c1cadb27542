"""RayReplicas: upstream's replica and its worker actors, as Ray's control plane sees them. Everything here blocks.

Upstream's workers have no names and nobody outside has their handles; Ray's actor table lists them with owner and pid.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import ray
import structlog
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cosmos3_serve.errors import EngineFailed
from cosmos3_serve.generator.engines.framework.deployment import WORKER_CLASS
from cosmos3_serve.generator.replica.engine_port import kill_replicas, replica_names, serve_status
from cosmos3_serve.generator.replica.system import accelerators

log = structlog.get_logger(__name__)

END_S = 5.0
ASK_S = 60.0
DEVICE_ENV = "COSMOS_DEVICE"  # upstream's own; its workers read it on import
LIVING = frozenset({"ALIVE", "RESTARTING"})


class RayReplicas:
    """Args:
    app, deployment: names in Serve.
    world_size: workers that a replica has.
    """

    def __init__(self, app: str, deployment: str, world_size: int) -> None:
        self._app = app
        self._deployment = deployment
        self._world_size = world_size
        self._killed: set[str] = set()

    def name(self) -> str:
        # The controller needs some seconds to notice that a replica was killed; its name is gone at once.
        living = set(replica_names(self._app, self._deployment)) - self._killed
        return min(living, default="")

    def serving(self) -> bool:
        if not self.name():
            return False
        status = serve_status(self._app, self._deployment)
        return bool(status["deployment"] == "HEALTHY" and status["running"] > 0)

    def missing(self) -> int:
        return max(0, self._world_size - len(self._workers()))

    def devices(self) -> list[dict[str, str]]:
        """All devices of the machines that the workers are on: Ray does not tell which of them a worker was given.

        Raises:
            EngineFailed: no worker is known yet, or another machine does not answer.
        """
        if os.environ.get(DEVICE_ENV) == "cpu":
            return []
        nodes = {worker["Address"]["NodeID"] for worker in self._workers()}
        if not nodes:
            raise EngineFailed("the framework's workers are not known yet", code="replica_lost")
        here = ray.get_runtime_context().get_node_id()
        return [device for node in sorted(nodes) for device in (accelerators() if node == here else _devices_of(node))]

    def kill(self) -> int:
        names = replica_names(self._app, self._deployment)
        workers = self._workers()
        self._killed = set(names)
        killed = kill_replicas(self._app, self._deployment)
        self._end(workers)
        return killed

    def _end(self, workers: list[dict[str, Any]]) -> None:
        """A worker ends with its owner, if it can: one that hangs in a driver call, or was stopped, gets SIGKILL."""
        here = ray.get_runtime_context().get_node_id()
        local = [worker["Pid"] for worker in workers if worker["Address"]["NodeID"] == here]
        deadline = time.monotonic() + END_S
        while any(_is_worker(pid) for pid in local) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in local:
            if _is_worker(pid):
                log.warning("worker_killed", pid=pid)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def _workers(self) -> list[dict[str, Any]]:
        """Living workers whose owner is a replica of ours."""
        from ray._private.state import actors  # the public state API needs Ray's dashboard, which is off

        table = actors().values()
        names = set(replica_names(self._app, self._deployment))
        owners = {_place(actor["Address"]) for actor in table if actor["Name"] in names}
        return [
            actor
            for actor in table
            if actor["ActorClassName"].rsplit(".", 1)[-1] == WORKER_CLASS
            and actor["State"] in LIVING
            and _place(actor["OwnerAddress"]) in owners
        ]


def _devices_of(node: str) -> list[dict[str, str]]:
    place = NodeAffinitySchedulingStrategy(node, soft=False)
    asked = ray.remote(num_cpus=0, scheduling_strategy=place)(accelerators).remote()
    try:
        found: list[dict[str, str]] = ray.get(asked, timeout=ASK_S)
    except (RayError, TimeoutError) as error:
        log.warning("devices_unknown", exception=type(error).__name__)
        raise EngineFailed("the machine of a worker does not say what devices it has", code="replica_lost") from None
    return found


def _place(address: dict[str, Any]) -> tuple[str, str, int]:
    return address["NodeID"], address["IPAddress"], address["Port"]


def _is_worker(pid: int) -> bool:
    """Whether the process is still one of upstream's workers: a number may have been given to another."""
    try:
        return WORKER_CLASS in Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return False
