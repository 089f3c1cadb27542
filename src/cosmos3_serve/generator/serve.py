"""The generator service from its first check to its last process.

Order: everything that can be refused is refused before Ray starts; then the cluster, the deployment, one line that says
where; then it waits. A first SIGTERM or SIGINT drains, a second ends at once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from cosmos3_serve.contract.wire import APP_NAME
from cosmos3_serve.errors import Cosmos3Error, GuardrailsUnavailable, Interrupted, ServiceFailure, StartRefused
from cosmos3_serve.generator.application import bound
from cosmos3_serve.generator.guardrails import GUARD, GUARD_APP
from cosmos3_serve.generator.prepare import Prepared, prepare
from cosmos3_serve.service import logs
from cosmos3_serve.service.cluster import RayCluster
from cosmos3_serve.service.http_server import endpoint_url, hold_port
from cosmos3_serve.service.local import write_ready_file
from cosmos3_serve.service.memory import uncollected
from cosmos3_serve.service.signals import Stop, StopSignals
from cosmos3_serve.service.stages import Stages
from cosmos3_serve.settings import GeneratorSettings
from cosmos3_serve.weights.guardrail_assets import GuardrailFiles
from cosmos3_serve.weights.model_cache import carried, settle_model_cache

log = structlog.get_logger(__name__)

TICK_S = 2.0  # how stale the reaper's list of processes may be
LOOK_EVERY = 5  # ticks between two looks at the ingress
POLL_S = 0.3
LOST_AFTER = 3

OnReady = Callable[[Mapping[str, Any]], None]


def run_generator(settings: GeneratorSettings, *, on_ready: OnReady | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    Args:
        on_ready: called once /ready is 200, with endpoint, pid and what runs (JSON-able).

    Raises:
        StartRefused, UsageError: a check says no; nothing was started, or what was started has ended.
        ServiceFailure: the cluster or the deployment broke.
        Interrupted: a second signal cut the drain short.
    """
    logs.configure(settings.log_level)
    with StopSignals() as stop:
        try:
            _serve(settings, stop, on_ready)
        except Stop as stopped:
            log.warning("ended_by_signal", drained=False)
            if stopped.again:
                raise Interrupted("a second signal ended the service before it had drained") from None


def _serve(settings: GeneratorSettings, stop: StopSignals, on_ready: OnReady | None) -> None:
    stages = Stages()
    settle_model_cache()
    prepared = prepare(settings)
    settings, guardrails = prepared.settings, prepared.guardrails
    stages.done("checks")
    cluster = RayCluster(settings.ray_address, carry=carried(os.environ))
    held: socket.socket | None = None
    try:
        port = settings.port
        if cluster.owned:
            # Held, not listened on: the number stays ours while the ingress replica is replaced.
            held = hold_port(settings.host, settings.port)
            port = held.getsockname()[1]
        cluster.start()
        stages.done("ray")
        cluster.claim(APP_NAME, remedy="a cluster has one generator: use that one, or own a cluster (no --ray-address)")
        stop.install()  # Ray has put handlers of its own in place
        if guardrails is not None and not _deploy_guard(settings, guardrails, cluster, stop):
            return
        stages.done("guardrails")
        ingress = _deploy(prepared, port)
        stages.done("deployed")
        cluster.record()
        ready = _wait_ready(ingress, settings, cluster, stop, stages)
        if ready is not None:
            log.info("ready", **ready)
            write_ready_file(ready)
            if on_ready is not None:
                on_ready(ready)
            _watch(ingress, cluster, stop)
        log.info("stopping", drain_timeout_s=settings.drain_timeout_s)
        _drain(ingress, settings.drain_timeout_s)
    finally:
        stop.ignore()
        _withdraw(cluster)
        if held is not None:
            held.close()


# ---- with Ray ------------------------------------------------------------------------------------------------------


def _deploy_guard(settings: GeneratorSettings, files: GuardrailFiles, cluster: RayCluster, stop: StopSignals) -> bool:
    """Deploy the text guard and wait until it has loaded and tried out its checkers; False when a signal came first.

    Raises:
        GuardrailsUnavailable: it does not load. No model was deployed and no GPU touched.
    """
    from ray import serve

    from cosmos3_serve.generator.guardrails.replica import guard_application
    from cosmos3_serve.generator.replica.engine_port import serve_status

    _start_serve()
    target = serve.RunTarget(guard_application(settings, files), name=GUARD_APP, route_prefix=None)
    serve.run_many([target], wait_for_applications_running=False)
    while not stop.wait(POLL_S):
        cluster.record()
        overview = serve_status(GUARD_APP, GUARD)
        if overview["application"] == "RUNNING":
            return True
        if overview["application"] in ("DEPLOY_FAILED", "UNHEALTHY"):
            raise _deploy_failed(overview)
    return False


def _start_serve() -> None:
    with uncollected():
        from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # its lines are not JSON
    serve.start(proxy_location="Disabled", logging_config={"enable_access_log": False})


def _deploy(prepared: Prepared, port: int) -> Any:
    """Deploy model and ingress; a handle of the ingress. Does not wait: the ingress answers while weights load."""
    from ray import serve

    _start_serve()
    app = bound(prepared, port)
    target = serve.RunTarget(app, name=APP_NAME, route_prefix=None)
    (handle,) = serve.run_many([target], wait_for_applications_running=False)
    return handle


def _wait_ready(
    ingress: Any, settings: GeneratorSettings, cluster: RayCluster, stop: StopSignals, stages: Stages
) -> dict[str, Any] | None:
    """What runs, once it is ready; None when a signal came first.

    Raises:
        StartRefused: the ingress says that it can never become ready.
        ServiceFailure: a replica does not start.
    """
    from cosmos3_serve.generator.replica.engine_port import serve_status

    shown = ""
    ticks = 0
    while not stop.wait(POLL_S):
        ticks += 1
        if ticks % 10 == 0:
            cluster.record()
        overview = serve_status(APP_NAME, settings.model)
        if overview["application"] in ("DEPLOY_FAILED", "UNHEALTHY"):
            raise _deploy_failed(overview)
        status = _status(ingress, overview)
        if status is None:
            continue
        stages.done("ingress")
        if status["failure"]:
            raise StartRefused(
                status["failure"]["detail"], code=status["failure"]["code"], remedy=status["failure"]["remedy"]
            )
        waiting = [check["name"] for check in status["report"]["checks"] if not check["ok"]]
        if "weights" not in waiting:
            stages.done("engine")
        if status["ready"]:
            stages.done("ready")
            return {**_described(status, settings, cluster.owned), "start_s": stages.seconds}
        if ", ".join(waiting) != shown:
            shown = ", ".join(waiting)
            log.info("waiting", checks=shown)
    return None


def _status(ingress: Any, overview: Mapping[str, Any]) -> dict[str, Any] | None:
    if overview["application"] == "NOT_STARTED":
        return None
    try:
        status: dict[str, Any] = ingress.status.remote().result(timeout_s=5.0)
        return status
    except Exception:
        return None  # not up yet


def _described(status: Mapping[str, Any], settings: GeneratorSettings, local: bool) -> dict[str, Any]:
    report = status["report"]
    address = "127.0.0.1" if local else status["address"]
    wanted = (
        *("model", "engine", "backend", "framework_revision", "server_source_revision"),
        *("checkpoint", "weights", "payload_verified"),
        *("target", "target_status", "target_forced"),
    )
    return {
        "status": "ready",
        "endpoint": endpoint_url(settings.host, status["port"], address=address),
        "pid": os.getpid(),
        "ingress_pid": status["pid"],
        **{name: report[name] for name in wanted},
        "guardrails": report["guardrails"],
    }


def _deploy_failed(overview: Mapping[str, Any]) -> Cosmos3Error:
    lines = [line.strip() for line in str(overview.get("message", "")).splitlines() if line.strip()]
    for name, kind in (("GuardrailsUnavailable", GuardrailsUnavailable), ("StartRefused", StartRefused)):
        said = next((line for line in reversed(lines) if f"{name}:" in line), None)
        if said is not None:
            words, _, code = said.partition(f"{name}:")[2].strip().partition(" [")
            code = code.removesuffix("]") if code.endswith("]") else ""
            return kind(words, code=code or None)
    return ServiceFailure(
        f"the deployment did not start: {lines[-1][:300] if lines else overview['application']}",
        code="deploy_failed",
        remedy="the log above has the replica's own words",
    )


def _watch(ingress: Any, cluster: RayCluster, stop: StopSignals) -> None:
    """Wait for a signal; note processes for the reaper; end when the cluster is lost.

    Raises:
        ServiceFailure: the cluster no longer answers.
    """
    ticks = missed = 0
    while not stop.wait(TICK_S):
        cluster.record()
        ticks += 1
        if ticks % LOOK_EVERY:
            continue
        try:
            ingress.status.remote().result(timeout_s=20.0)
            missed = 0
        except Exception as error:
            missed += 1  # a replica that is being replaced comes back
            log.warning("ingress_not_answering", exception=type(error).__name__, times=missed)
            if missed >= LOST_AFTER and not _cluster_alive():
                raise ServiceFailure("the Ray cluster was lost", code="cluster_lost") from None


def _cluster_alive() -> bool:
    from ray import serve

    try:
        serve.status()
        return True
    except Exception:
        return False


def _drain(ingress: Any, timeout_s: float) -> None:
    try:
        ingress.drain.remote(timeout_s).result(timeout_s=timeout_s + 30.0)
    except Exception as error:
        log.warning("drain_incomplete", exception=type(error).__name__)


def _withdraw(cluster: RayCluster) -> None:
    """End our own cluster, Serve and all; from a joined one take only our application."""
    if not cluster.owned and cluster.claimed and "ray" in sys.modules:
        import ray
        from ray import serve

        if ray.is_initialized():
            for name in (APP_NAME, GUARD_APP):
                with contextlib.suppress(Exception):
                    serve.delete(name)
    cluster.stop()


if __name__ == "__main__":
    # For tests and tools: everything from the environment, as `cosmos3 ray-serve` without flags.
    try:
        run_generator(GeneratorSettings.load())
    except Cosmos3Error as refused:
        print(json.dumps(refused.as_problem()), file=sys.stderr)
        sys.exit(refused.exit_code)
