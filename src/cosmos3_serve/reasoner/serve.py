"""The reasoner service from its first check to its last process.

Order: everything that can be refused is refused before Ray starts; then the cluster, the registry, gateways and
replicas; one line that says where; then it waits. SIGUSR1 renews what runs, one after another. A first SIGTERM or
SIGINT drains, a second ends at once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from cosmos3_serve.errors import Cosmos3Error, Interrupted, ServiceFailure, StartRefused
from cosmos3_serve.reasoner.application import affinity_rules
from cosmos3_serve.reasoner.control import RayControl, ask_fleet, overview
from cosmos3_serve.reasoner.fleet.core import Overview
from cosmos3_serve.reasoner.fleet.replicas import ReplicaState
from cosmos3_serve.reasoner.fleet.scaling import gateways_for
from cosmos3_serve.reasoner.prepare import prepare
from cosmos3_serve.reasoner.renewal import Renewal
from cosmos3_serve.reasoner.setup import Names, ReasonerSetup, ServedModel, names_of
from cosmos3_serve.service import logs
from cosmos3_serve.service.cluster import RayCluster
from cosmos3_serve.service.http_server import endpoint_url, hold_port
from cosmos3_serve.service.local import write_ready_file
from cosmos3_serve.service.signals import Stop, StopSignals
from cosmos3_serve.settings import ReasonerSettings
from cosmos3_serve.weights.model_cache import carried, settle_model_cache

log = structlog.get_logger(__name__)

TICK_S = 2.0  # how stale the reaper's list of processes may be
LOOK_EVERY = 5  # ticks between two looks at the cluster
POLL_S = 0.3
LOST_AFTER = 3
CUT_S = 5.0  # in which gateways end what did not end in time
OTHER_NAME = "give this one another --name and --port, or end that one first"

OnReady = Callable[[Mapping[str, Any]], None]


def run_reasoner(
    settings: ReasonerSettings, *, on_ready: OnReady | None = None, gateway: type[Any] | None = None
) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    Args:
        on_ready: called once gateways and replicas serve, with endpoint, pid and what runs (JSON-able).
        gateway: the deployment's class, constructed with a `ReasonerSetup`; default: `ReasonerGateway`.

    Raises:
        StartRefused, UsageError: a check says no; nothing was started, or what was started has ended.
        ServiceFailure: the cluster or a deployment broke.
        Interrupted: a second signal cut the drain short.
    """
    logs.configure(settings.log_level)
    with StopSignals() as stop:
        try:
            _serve(settings, stop, on_ready, gateway)
        except Stop as stopped:
            log.warning("ended_by_signal", drained=False)
            if stopped.again:
                raise Interrupted("a second signal ended the service before it had drained") from None


def _serve(settings: ReasonerSettings, stop: StopSignals, on_ready: OnReady | None, gateway: type[Any] | None) -> None:
    settle_model_cache()
    settings, model = prepare(settings)
    cluster = RayCluster(settings.ray_address, carry=carried(os.environ))
    names = names_of(settings.name)
    held: socket.socket | None = None
    try:
        port = settings.port
        if cluster.owned:
            # Held, not listened on: the number stays ours while a gateway is replaced.
            held = hold_port(settings.host, settings.port)
            port = held.getsockname()[1]
        cluster.start()
        if not cluster.owned:
            _refuse_declared(names)
        cluster.claim(names.gateways, remedy=OTHER_NAME)
        stop.install()  # Ray has put handlers of its own in place
        setup = ReasonerSetup(settings, model, port, secrets.token_urlsafe(32))
        renewal = Renewal(settings, _deploy(setup, gateway))
        stop.on_renew(renewal.ask)
        cluster.record()
        ready = _wait_ready(setup, cluster, stop)
        if ready is not None:
            log.info("ready", **ready)
            write_ready_file(ready)
            if on_ready is not None:
                on_ready(ready)
            _watch(cluster, stop, renewal)
        log.info("stopping", drain_timeout_s=settings.drain_timeout_s)
        _drain(names.registry, settings.drain_timeout_s)
    finally:
        stop.ignore()
        _withdraw(cluster, names)
        if held is not None:
            held.close()


# ---- with Ray ------------------------------------------------------------------------------------------------------


def _refuse_declared(names: Names) -> None:
    """Raises StartRefused: the cluster's own tools run a service of this name, which would be replaced."""
    from ray import serve

    try:
        declared = ask_fleet(names.registry, "declared") and names.gateways in serve.status().applications
    except Exception:
        return  # there is none, or what is left of one
    if declared:
        raise StartRefused(
            f"the cluster's own tools run {names.gateways} on it", code="service_running", remedy=OTHER_NAME
        )


def _deploy(setup: ReasonerSetup, gateway: type[Any] | None) -> RayControl:
    """Deploy everything. Does not wait: gateways answer while replicas load."""
    from ray import serve

    from cosmos3_serve.reasoner.registry import start_fleet_actor

    if gateway is None:
        from cosmos3_serve.reasoner.gateway.deployment import ReasonerGateway

        gateway = ReasonerGateway

    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # its lines are not JSON
    serve.start(proxy_location="Disabled", logging_config={"enable_access_log": False})
    start_fleet_actor(
        setup.names.registry, affinity_rules(setup.settings), setup.settings.workers, setup.settings.log_level
    )
    control = RayControl(setup, gateway)
    control.deploy()
    return control


def _wait_ready(setup: ReasonerSetup, cluster: RayCluster, stop: StopSignals) -> dict[str, Any] | None:
    """What runs, once it is ready; None when a signal came first.

    Raises:
        StartRefused: a replica or a gateway says that it can never become ready.
        ServiceFailure: a deployment does not start.
    """
    shown = ""
    ticks = 0
    workers = setup.settings.workers
    gateways = gateways_for(setup.settings.gateways, workers, workers.least)
    while not stop.wait(POLL_S):
        ticks += 1
        if ticks % 10 == 0:
            cluster.record()
            _check_deployments(setup)
        try:
            fleet = overview(setup.names.registry)
        except Exception:
            continue  # not up yet
        serving = [m for m in fleet.members if m.phase is ReplicaState.READY]
        _check_failures(fleet, bool(serving))
        ready = [g for g in fleet.gateways if g.ready]
        # With one replica that serves, others that fail do not keep the service from starting; Serve goes on trying.
        enough = len(serving) >= workers.least or (serving and fleet.failures)
        if enough and len(ready) >= gateways:
            return _described(setup, fleet, cluster.owned)
        missing = sorted({name for g in fleet.gateways for name in g.waiting})
        waiting = f"{len(serving)}/{workers.least} replicas, {len(ready)}/{gateways} gateways"
        if waiting != shown:
            log.info("waiting", fleet=waiting, checks=", ".join(missing))
            shown = waiting
    return None


def _check_failures(fleet: Overview, serving: bool) -> None:
    failures = [] if serving else [f for f in fleet.failures.values() if f["kind"] == "refused"]
    failures += [g.failure for g in fleet.gateways if g.failure is not None]
    if failures:
        raise _typed({"kind": "refused", **failures[-1]})


def _typed(said: Mapping[str, str]) -> Cosmos3Error:
    """What a replica or gateway said, as the failure that it was there."""
    kind = StartRefused if said["kind"] == "refused" else ServiceFailure
    return kind(said["detail"], code=said["code"], remedy=said["remedy"])


def _check_deployments(setup: ReasonerSetup) -> None:
    from ray import serve

    try:
        applications = serve.status().applications
    except Exception:
        return  # the controller is busy or being replaced; the next look tells
    for name, app in applications.items():
        if name not in (setup.names.gateways, setup.names.replicas) or app.status != "DEPLOY_FAILED":
            continue
        failures: list[Mapping[str, str]] = []
        with contextlib.suppress(Exception):
            failures = list(overview(setup.names.registry).failures.values())
        if failures:
            raise _typed(failures[-1])
        lines = [line.strip() for line in str(app.message).splitlines() if line.strip()]
        raise ServiceFailure(
            f"the deployment did not start: {lines[-1][:300] if lines else app.status}",
            code="deploy_failed",
            remedy="the log above has the replica's own words",
        )


def _described(setup: ReasonerSetup, fleet: Overview, local: bool) -> dict[str, Any]:
    model: ServedModel = setup.model
    first = next(g for g in fleet.gateways if g.ready)
    address = "127.0.0.1" if local else first.address
    return {
        "status": "ready",
        "endpoint": endpoint_url(setup.settings.host, first.port, address=address),
        "pid": os.getpid(),
        "gateway_pids": sorted(g.pid for g in fleet.gateways),
        "model": model.name,
        "checkpoint": model.checkpoint,
        "weights": model.weights,
        "routing": setup.settings.routing,
        "replicas": [
            {"id": m.replica_id, "url": m.url, "pid": m.service.pid, "engine": dict(m.service.engine)}
            for m in fleet.members
        ],
    }


def _watch(cluster: RayCluster, stop: StopSignals, renewal: Renewal) -> None:
    """Wait for a signal; note processes for the reaper; renew if asked; end when the cluster is lost.

    Raises:
        ServiceFailure: the cluster no longer answers.
    """
    from ray import serve

    ticks = missed = 0
    while not stop.wait(TICK_S):
        cluster.record()
        renewal.step()
        ticks += 1
        if ticks % LOOK_EVERY:
            continue
        try:
            serve.status()
            missed = 0
        except Exception as error:
            missed += 1
            log.warning("cluster_not_answering", exception=type(error).__name__, times=missed)
            if missed >= LOST_AFTER:
                raise ServiceFailure("the Ray cluster was lost", code="cluster_lost") from None


def _drain(registry: str, timeout_s: float) -> None:
    """Tell gateways to take nothing new; wait until none of them answers anybody any more.

    After `timeout_s` they end what is left themselves, each answer with its error; engines end after them.
    """
    try:
        ask_fleet(registry, "end")
        deadline = time.monotonic() + max(timeout_s, TICK_S) + CUT_S
        time.sleep(TICK_S)  # by then every gateway has heard it, and says what it still answers
        while left := sum(gateway.in_flight for gateway in overview(registry).gateways):
            if time.monotonic() >= deadline:
                log.warning("drain_incomplete", in_flight=left)
                return
            time.sleep(POLL_S)
    except Exception as error:
        log.warning("drain_incomplete", exception=type(error).__name__)


def _withdraw(cluster: RayCluster, names: Names) -> None:
    """Take our applications off the cluster; end the cluster if it is ours."""
    if "ray" in sys.modules:
        import ray
        from ray import serve

        from cosmos3_serve.reasoner.registry import stop_fleet_actor

        if ray.is_initialized() and cluster.claimed:
            with contextlib.suppress(Exception):
                if cluster.owned:
                    serve.shutdown()
                else:
                    serve.delete(names.gateways)
                    serve.delete(names.replicas)
                stop_fleet_actor(names.registry)
    cluster.stop()


if __name__ == "__main__":
    # For tests and tools: everything from the environment, as `cosmos3 reasoner serve` without flags.
    try:
        run_reasoner(ReasonerSettings.load())
    except Cosmos3Error as refused:
        print(json.dumps(refused.as_problem()), file=sys.stderr)
        sys.exit(refused.exit_code)
