"""RayEngine: the model deployment behind a Serve handle, as the coordinator's EnginePort."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import ray
import structlog
from ray import serve
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import RayServeException, RequestCancelledError

from cosmos3_serve.errors import Cosmos3Error, EngineFailed
from cosmos3_serve.generator.engines.job import EngineInfo, EngineJob, EngineResult

log = structlog.get_logger(__name__)

SERVE_NAMESPACE = "serve"
CONTROL_TIMEOUT_S = 10.0


class RayEngine:
    """Args:
    handle: of the model deployment.
    app, deployment: their names in Serve, to find the replicas by.
    on_replaced: told after a replica was killed to be replaced.
    """

    def __init__(
        self, handle: Any, *, app: str, deployment: str, on_replaced: Callable[[], None] = lambda: None
    ) -> None:
        self._handle = handle
        self._names = (app, deployment)
        self._on_replaced = on_replaced

    @property
    def replacing(self) -> bool:
        return False  # Serve and the watchdog do that

    async def loading(self) -> bool:
        status = await asyncio.to_thread(serve_status, *self._names)
        return bool(status["running"] == 0)

    async def info(self) -> EngineInfo:
        return EngineInfo.model_validate(await self._control(self._handle.info.remote()))

    async def generate(self, job: EngineJob) -> EngineResult:
        """One sample; calls made at once coalesce in the replica. While no replica lives the call waits for one.

        Raises:
            EngineFailed: the replica died or could not be reached (`replica_lost`), or failed outside the sample.
        """
        return EngineResult.model_validate(await _typed(self._handle.generate.remote(job.model_dump(mode="json"))))

    async def progress(self) -> dict[str, tuple[int, int]]:
        steps = await self._control(self._handle.progress.remote())
        return {key: (int(step), int(total)) for key, (step, total) in steps.items()}

    async def cancel(self, keys: list[str]) -> None:
        try:
            await self._control(self._handle.cancel.remote(list(keys)))
        except (Cosmos3Error, TimeoutError) as error:
            # A replica that does not listen has nothing to cancel, or is the watchdog's business.
            log.warning("cancel_not_delivered", exception=type(error).__name__)

    async def incarnation(self) -> str:
        """Another one for every replica that there ever was."""
        return str(await self._control(self._handle.incarnation.remote()))

    async def read_probe(self, name: str) -> str:
        return str(await self._control(self._handle.read_probe.remote(name)))

    async def replace(self) -> None:
        """Kill the model's replicas; Serve starts new ones. A wedged process is not asked: it would not answer."""
        killed = await asyncio.to_thread(kill_replicas, *self._names)
        self._on_replaced()
        log.warning("engine_replaced", replicas=killed)

    async def _control(self, response: Any) -> Any:
        async with asyncio.timeout(CONTROL_TIMEOUT_S):
            return await _typed(response)


def replica_names(app: str, deployment: str) -> list[str]:
    """Names of the deployment's living replica actors, blocking."""
    prefix = f"SERVE_REPLICA::{app}#{deployment}#"
    actors = ray.util.list_named_actors(all_namespaces=True)
    return [a["name"] for a in actors if a["namespace"] == SERVE_NAMESPACE and a["name"].startswith(prefix)]


def kill_replicas(app: str, deployment: str) -> int:
    """Kill the deployment's replicas, blocking; how many there were."""
    killed = 0
    for name in replica_names(app, deployment):
        try:
            ray.kill(ray.get_actor(name, namespace=SERVE_NAMESPACE), no_restart=True)
            killed += 1
        except ValueError:
            continue  # gone in the meantime
    return killed


def serve_status(app: str, deployment: str) -> dict[str, Any]:
    """What the Serve controller says of our application, blocking: statuses as text, replicas by state."""
    overview = serve.status().applications.get(app)
    if overview is None:
        return {"application": "NOT_STARTED", "deployment": "NOT_STARTED", "running": 0}
    model = overview.deployments.get(deployment)
    return {
        "application": overview.status.value,
        "deployment": model.status.value if model else "NOT_STARTED",
        "running": int(model.replica_states.get("RUNNING", 0)) if model else 0,
        "message": (model.message if model else overview.message)[:8000],  # with a traceback, whose last line says why,
    }


async def _typed(response: Any) -> Any:
    """Await a handle's response; Ray's many exceptions become ours. A caller's own cancellation passes through."""
    try:
        return await response
    except RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, Cosmos3Error):
            raise cause from None
        raise EngineFailed(
            f"the model replica failed ({type(cause or error).__name__})", code="replica_failed"
        ) from None
    except RequestCancelledError:
        raise EngineFailed("the model replica dropped the call", code="replica_lost") from None
    except (RayActorError, RayError, RayServeException) as error:
        raise EngineFailed(f"the model replica was lost ({type(error).__name__})", code="replica_lost") from None
