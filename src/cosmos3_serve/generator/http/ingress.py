"""IngressReplica: the Serve deployment that answers the public port and owns the ledger.

It calls the model through a Serve handle and serves HTTP itself, in its own event loop: Serve's proxies are off. The
HTTP server is up before anything else, so that /health and /ready answer while weights load.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Coroutine, Mapping
from importlib.metadata import version
from typing import Any

import ray
import structlog
from ray import serve

from cosmos3_serve.contract.profile import FRAMEWORK_PROFILE, EngineProfile, diffusers_profile
from cosmos3_serve.contract.views import AssetRow
from cosmos3_serve.contract.wire import APP_NAME
from cosmos3_serve.errors import Cosmos3Error, ServiceFailure, StartRefused
from cosmos3_serve.generator.coordinator import Coordinator
from cosmos3_serve.generator.defaults_file import read_defaults
from cosmos3_serve.generator.guardrails.port import RayTextGuard
from cosmos3_serve.generator.http.application import build_app
from cosmos3_serve.generator.http.checks import ServiceChecks
from cosmos3_serve.generator.http.front import Front
from cosmos3_serve.generator.http.info import ready_report
from cosmos3_serve.generator.ledger.ledger import Ledger
from cosmos3_serve.generator.ports import EnginePort, SystemClock
from cosmos3_serve.generator.queue.staging import Stager
from cosmos3_serve.generator.replica.canary import Canary
from cosmos3_serve.generator.replica.deployment import max_ongoing
from cosmos3_serve.generator.replica.engine_port import RayEngine, serve_status
from cosmos3_serve.generator.replica.system import SystemInfo
from cosmos3_serve.service import logs
from cosmos3_serve.service.http_server import HttpServer
from cosmos3_serve.service.metrics import GeneratorMetrics, QueueFigures
from cosmos3_serve.service.readiness import Readiness
from cosmos3_serve.service.tokens import TokenBook
from cosmos3_serve.settings import GeneratorSettings
from cosmos3_serve.storage.roots import AllowedRoots
from cosmos3_serve.weights.blockworld import BLOCKWORLD
from cosmos3_serve.weights.checkpoint import TINY, Checkpoint

log = structlog.get_logger(__name__)

NAME = "ingress"
HTTP_GRACE_S = 5.0
STOP_MARGIN_S = 30.0  # results are written, connections end
RETRY_S = 1.0


class IngressReplica:
    """Args:
    model: handle of the model deployment.
    port: of the public socket; 0 picks one, `status` says which.

    Raises:
        StartRefused: no token, or the port is taken.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it, in the loop that the calls run in
        self,
        settings: GeneratorSettings,
        checkpoint: Checkpoint,
        model: Any,
        port: int,
        source_revision: str,
        assets: tuple[AssetRow, ...] = (),
    ) -> None:
        logs.configure(settings.log_level)
        self._settings = settings
        self._metrics = metrics = GeneratorMetrics()
        profile = await asyncio.to_thread(profile_of, settings, checkpoint)
        self._watching: list[Coroutine[Any, Any, None]] = []
        self._draining: asyncio.Task[None] | None = None
        self._engine = self._bind(checkpoint, profile, model)
        self._canary = Canary(self._engine, profile, settings.output_path)
        self._front = Front(
            settings=settings,
            profile=profile,
            source_revision=source_revision,
            book=TokenBook.from_environ(),
            metrics=metrics,
            readiness=Readiness(),
            system=SystemInfo(
                {
                    "framework_revision": profile.revision,
                    "server_source_revision": source_revision,
                    "model": settings.model,
                    "max_batch_size": settings.max_batch_size,
                    "max_num_seqs": settings.inference_batch_limit,
                },
                lambda: self._front.engine,
                ray.cluster_resources,
                engine_name=profile.engine,
                on_cpu=settings.device == "cpu",
                forced=settings.force_unsupported_gpu,
            ),
            max_ongoing=max_ongoing(settings),
            payload_verified=checkpoint.verified,
            assets=assets,
        )
        stager = Stager(
            settings.output_path,
            AllowedRoots.parse(settings.allowed_s3_roots),
            max_bytes=settings.max_input_bytes,
            timeout_s=settings.input_timeout_s,
            observer=metrics,
        )
        clock = SystemClock()
        guard = RayTextGuard() if settings.guardrails else None
        ledger = Ledger(settings.output_path, clock)
        self._coordinator = Coordinator(
            settings, profile, self._engine, ledger, stager, clock, source_revision=source_revision, observer=metrics,
            guard=guard,
        )  # fmt: skip
        metrics.watch_queue(self._queue)
        self._checks = ServiceChecks(self._front, self._canary, self._serve_status, self._coordinator.stats, guard)
        self._checks.register(self._front.readiness)
        self._server = HttpServer(build_app(self._front), settings.host, port)
        await self._server.start()
        self._tasks = [asyncio.create_task(work) for work in (self._begin(), *self._watching)]

    def _bind(self, checkpoint: Checkpoint, profile: EngineProfile, model: Any) -> EnginePort:
        if self._settings.engine == "framework":
            from cosmos3_serve.generator.engines.framework.binding import bind_engine

            engine, supervisor = bind_engine(self._settings, checkpoint, profile, model, self._replaced)
            self._watching.append(supervisor.run())
            return engine
        return RayEngine(model, app=APP_NAME, deployment=self._settings.model, on_replaced=self._replaced)

    async def _begin(self) -> None:
        """Open the ledger, learn what the engine is, let the canary pass; then take batches."""
        try:
            await self._coordinator.start()
            self._front.batches = self._coordinator
            await self._learn_engine()
            await self._canary.run()
            await self._coordinator.ready()
        except Cosmos3Error as error:
            self._checks.failure = error
            log.error("ingress_cannot_start", code=error.stable_code, reason=error.detail)
            return
        except Exception as error:
            log.error("ingress_start_broke", exc_info=error)
            self._checks.failure = ServiceFailure(f"the service could not start ({type(error).__name__})")
            return
        self._front.accepting = True
        log.info("accepting_batches", port=self._server.port)

    async def _learn_engine(self) -> None:
        while self._front.engine is None:
            try:
                self._front.engine = await self._engine.info()
            except StartRefused:
                raise  # it never will: a device that is no target
            except (Cosmos3Error, TimeoutError):
                await asyncio.sleep(RETRY_S)  # weights load

    def _replaced(self) -> None:
        self._metrics.engine_replaced()
        self._canary.again("the engine was replaced; the canary runs again")

    async def _serve_status(self) -> Mapping[str, Any]:
        return await asyncio.to_thread(serve_status, APP_NAME, self._settings.model)

    def _queue(self) -> QueueFigures:
        stats = self._coordinator.stats()
        return QueueFigures(stats.depth, stats.oldest_age_s, stats.running, stats.waves_started, stats.stalled)

    # ---- for the service that deployed us, and for Serve ------------------------------------------------------------

    async def status(self) -> dict[str, Any]:
        """Port, address and the readiness report; `failure` when this replica can never become ready."""
        report = await ready_report(self._front)
        failure = self._checks.failure
        return {
            "port": self._server.port,
            "address": ray.util.get_node_ip_address(),
            "pid": os.getpid(),
            "failure": failure and {"code": failure.stable_code, "detail": failure.detail, "remedy": failure.remedy},
            "ready": report.status == "ready",
            "report": report.model_dump(mode="json"),
        }

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new, let what runs finish, then close the port; everything else stays in the ledger. Called
        again it waits for the same end."""
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain(timeout_s))
        await asyncio.shield(self._draining)

    async def __del__(self) -> None:  # Serve awaits it before it ends the replica
        """As when the service ends: who replaces this replica finds everything in the ledger."""
        if getattr(self, "_coordinator", None) is not None and getattr(self, "_tasks", None) is not None:
            await self.drain(self._settings.drain_timeout_s)

    async def _drain(self, timeout_s: float) -> None:
        self._front.draining = True
        log.info("draining", timeout_s=timeout_s)
        await self._coordinator.drain(timeout_s)
        await self._server.stop(HTTP_GRACE_S)
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._canary.close()
        await self._coordinator.close()

    async def check_health(self) -> None:
        """Serve replaces this replica when its HTTP server ended, or when it can never become ready, or when a
        task of its coordinator broke."""
        failure = self._checks.failure or self._coordinator.failure
        if failure is not None:
            raise RuntimeError(failure.detail)
        if not (self._server.alive or self._front.draining):
            raise RuntimeError("the HTTP server has ended")


def profile_of(settings: GeneratorSettings, checkpoint: Checkpoint) -> EngineProfile:
    profile = FRAMEWORK_PROFILE
    if settings.engine != "framework":
        profile = diffusers_profile(
            version("diffusers"), tiny=checkpoint.id == TINY, blockworld=checkpoint.id == BLOCKWORLD
        )
    return profile.model_copy(update={"custom_defaults": read_defaults(settings.defaults_file)})


def ingress_deployment(
    settings: GeneratorSettings,
    checkpoint: Checkpoint,
    model: Any,
    port: int,
    source_revision: str,
    assets: tuple[AssetRow, ...] = (),
) -> Any:
    """The ingress as a bound Serve application over the bound model."""
    return (
        serve.deployment(IngressReplica)
        .options(
            name=NAME,
            num_replicas=1,
            max_ongoing_requests=64,
            ray_actor_options={"num_cpus": 0},
            health_check_period_s=5.0,
            health_check_timeout_s=30.0,
            graceful_shutdown_wait_loop_s=0.2,
            graceful_shutdown_timeout_s=settings.drain_timeout_s + STOP_MARGIN_S,
            max_constructor_retry_count=2,
            logging_config={"enable_access_log": False},
        )
        .bind(settings, checkpoint, model, port, source_revision, assets)
    )
