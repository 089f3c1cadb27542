"""ReasonerReplica: the Serve deployment whose every replica supervises one vLLM server.

Serve places it, asks for its health, and replaces it. Requests do not pass through it: gateways talk to the server
itself, whose address the replica puts into the fleet's roster once it answers.
"""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import ray
import structlog
from ray import serve

from cosmos3_serve.errors import Cosmos3Error, EngineFailed, InputError, Refusal
from cosmos3_serve.reasoner.autoscaling import replica_scaling
from cosmos3_serve.reasoner.engine.args import engine_plan
from cosmos3_serve.reasoner.engine.hardware import detect
from cosmos3_serve.reasoner.engine.interpreter import find_interpreter
from cosmos3_serve.reasoner.engine.liveness import Liveness
from cosmos3_serve.reasoner.engine.model_shape import read_shape
from cosmos3_serve.reasoner.engine.reporter import CALL_S, Reporter
from cosmos3_serve.reasoner.engine.vllm_process import LAUNCHER, MODULE, VllmProcess, vllm_cache
from cosmos3_serve.reasoner.fleet.core import FleetAway
from cosmos3_serve.reasoner.fleet.member import Load, Service
from cosmos3_serve.reasoner.registry import RayFleet
from cosmos3_serve.reasoner.setup import ReasonerSetup
from cosmos3_serve.service import logs
from cosmos3_serve.settings import ReasonerSettings
from cosmos3_serve.weights.cache_dir import default_cache
from cosmos3_serve.weights.checkpoint import resolve_checkpoint

log = structlog.get_logger(__name__)

NAME = "replica"
HEALTH_PERIOD_S = 3.0
HEALTH_TIMEOUT_S = 30.0
STOP_MARGIN_S = 30.0
HEARD_S = 2.0  # gateways watch the fleet; one that chose us a moment ago has sent its question by then
SEATED_S = 15.0  # a roster that does not know whom it replaces waits for eight seconds of silence
SHOWN_LINES = 15


class ReasonerReplica:
    """Ready when its engine answers. Deployed by reference (no decorator), so that the class is not pickled by value.

    Raises:
        StartRefused, ServiceFailure: the engine does not start; the roster is told too, so that the reason reaches the
            operator as it is.
    """

    async def __init__(self, setup: ReasonerSetup) -> None:  # type: ignore[misc]  # Serve awaits it
        logs.configure(setup.settings.log_level)
        self._settings = setup.settings
        self._fleet = RayFleet(setup.names.registry)
        self._name = serve.get_replica_context().replica_id.unique_id
        try:
            self._engine, service = await self._start(setup)
        except Cosmos3Error as error:
            await self._tell_failure(error)
            raise
        self._model = setup.model.name
        self._token: asyncio.Task[None] | None = None
        self._liveness, self._hung = Liveness(setup.settings.hang_timeout_s), asyncio.Event()
        self._reporter = Reporter(self._fleet, service, self._load)
        self._reporter.start()
        # Serve takes it for running once this returns, and may end an old one for it: gateways must know it by then.
        if not await self._reporter.seated(SEATED_S):
            log.warning("not_registered_yet")  # the roster is away; it is asked on and on
        self._watch = asyncio.create_task(self._until_over())

    async def _start(self, setup: ReasonerSetup) -> tuple[VllmProcess, Service]:
        path = await asyncio.to_thread(local_checkpoint, setup)
        interpreter = await asyncio.to_thread(find_interpreter, setup.settings.vllm_python)
        hardware = await asyncio.to_thread(detect)
        plan = engine_plan(read_shape(path), setup.settings, hardware, interpreter.version)
        cache = setup.settings.cache_dir or default_cache()
        await asyncio.to_thread(interpreter.hand_over, vllm_cache(cache))
        model = ["--model", str(path), "--served-model-name", setup.model.name]
        engine = VllmProcess(
            [str(interpreter.python), "-m", LAUNCHER, MODULE, *model],
            plan.argv,
            plan.env,
            setup.secret,
            # A cluster of one machine calls itself 127.0.0.1; between machines the secret is what protects the port.
            host=ray.util.get_node_ip_address(),
            cache_dir=cache,
            tls=setup.settings.replica_tls,
        )
        try:
            await engine.start(setup.settings.start_timeout_s)
        except Cosmos3Error:
            log_words(engine.last_words)
            raise
        facts = {**plan.facts, "vllm": ".".join(map(str, interpreter.version)), "engine_pid": engine.pid}
        log.info("engine_ready", url=engine.url, **facts)
        node = ray.get_runtime_context().get_node_id()
        return engine, Service(engine.url, plan.max_num_seqs, plan.held, node=node, pid=os.getpid(), engine=facts)

    async def _tell_failure(self, error: Cosmos3Error) -> None:
        failure = failure_record(error)
        try:
            await self._fleet.call("failed", self._name, failure, timeout_s=CALL_S)
        except FleetAway:
            log.warning("failure_not_told", code=error.stable_code)

    async def _load(self) -> Load | None:
        """For the roster, about once a second; it is also how the engine's liveness is watched."""
        figures = await self._engine.figures()
        if figures is None:
            return None
        alive = self._liveness
        alive.see(figures)
        if alive.wants_token and self._token is None:
            alive.asked()
            self._token = asyncio.create_task(self._ask_token())
        if alive.hung:
            self._hung.set()
        return Load(figures.running, figures.waiting, alive.quiet)

    async def _ask_token(self) -> None:
        try:
            self._liveness.answered(await self._engine.token(self._model, 2 * self._liveness.hung_s))
        finally:
            self._token = None

    async def _until_over(self) -> None:
        """Out of the roster at once when the engine dies or hangs: gateways cut what they wait for here. Serve's own
        look comes seconds later and replaces us."""
        ends = [asyncio.ensure_future(event.wait()) for event in (self._engine.exited, self._hung)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
        if self._engine.exited.is_set():
            log.error("engine_ended", code=self._engine.exit_code)
        else:
            log.error("engine_hung", silent_s=round(self._liveness.silent_s(), 1))
        log_words(self._engine.tail())
        await self._reporter.leave()

    async def check_health(self) -> None:
        """Serve replaces the replica when this raises. A stalled /health alone must be seen three times."""
        try:
            if self._hung.is_set():
                raise EngineFailed("the engine computes nothing although it has work", code="engine_hung")
            await self._engine.check()
        except EngineFailed as error:
            log.warning("engine_unhealthy", code=error.stable_code)
            raise

    async def _service_ends(self) -> bool:
        try:
            return bool(await self._fleet.call("ending", timeout_s=CALL_S))
        except FleetAway:
            return False

    async def __del__(self) -> None:  # Serve awaits it before it ends the replica
        """Leave in order: nothing new, then the running answers, then the engine."""
        engine: VllmProcess | None = getattr(self, "_engine", None)
        if engine is None:
            return
        self._watch.cancel()
        await self._reporter.drain()
        if self._hung.is_set():
            log.warning("drain_skipped", reason="the engine hangs")
        elif not await self._service_ends():  # else gateways have drained already, or given up
            await asyncio.sleep(HEARD_S)
            if not await engine.drained(self._settings.drain_timeout_s):
                log.warning("drain_incomplete")
        await self._reporter.leave()
        await engine.stop(0.0)


def failure_record(error: Cosmos3Error) -> dict[str, str]:
    """What the roster keeps of a failed start. `kind`: `refused` is what no other attempt can cure."""
    kind = "refused" if isinstance(error, Refusal | InputError) else "failed"
    return {"code": error.stable_code, "detail": error.detail, "remedy": error.remedy, "kind": kind}


def log_words(lines: list[str]) -> None:
    """What the engine said last, without its small talk."""
    for line in [line for line in lines if not re.search(r"\bINFO\b", line)][-SHOWN_LINES:]:
        log.error("engine_said", line=line[:500])


def local_checkpoint(setup: ReasonerSetup) -> Path:
    """The checkpoint on this machine: where the service found it, or fetched or built here. Raises as resolving."""
    if setup.model.path.is_dir():
        return setup.model.path
    return resolve_checkpoint(setup.settings.model, setup.settings.cache_dir or default_cache()).path


def replica_deployment(setup: ReasonerSetup, surge_percent: int = 0) -> Any:
    """The replicas as a bound Serve application: one GPU each where the cluster has any.

    Args:
        surge_percent: of their number, so many more may live while they are replaced.
    """
    settings: ReasonerSettings = setup.settings
    gpus = 1 if ray.cluster_resources().get("GPU", 0) >= 1 else 0
    return (
        serve.deployment(ReasonerReplica)
        .options(
            name=NAME,
            **replica_scaling(setup),
            max_surge_percent=surge_percent,
            max_ongoing_requests=16,
            # The engine's threads are not Ray's to count: on a small machine replicas share what there is.
            ray_actor_options={"num_cpus": 0, "num_gpus": gpus},
            health_check_period_s=HEALTH_PERIOD_S,
            health_check_timeout_s=HEALTH_TIMEOUT_S,
            graceful_shutdown_wait_loop_s=0.2,
            graceful_shutdown_timeout_s=settings.drain_timeout_s + STOP_MARGIN_S,
            max_constructor_retry_count=2,
            logging_config={"enable_access_log": False},
        )
        .bind(setup)
    )
