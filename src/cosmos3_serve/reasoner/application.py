"""The reasoner as Serve applications that a cluster's own tools deploy (KubeRay, `serve deploy`).

`import_path: cosmos3_serve.reasoner.application:build_gateways` and `:build_replicas`, with the same `args`: fields of
`ReasonerSettings`. The two are deployed apart and must share a secret that nobody else knows: it is made from the
cluster's own Ray token.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cosmos3_serve.errors import StartRefused
from cosmos3_serve.reasoner.autoscaling import gateway_scaling
from cosmos3_serve.reasoner.prepare import prepare
from cosmos3_serve.reasoner.sessions.policy import AffinityRules, Mode
from cosmos3_serve.reasoner.setup import NAMESPACE, ReasonerSetup
from cosmos3_serve.service import logs
from cosmos3_serve.service.joined import joined_settings
from cosmos3_serve.settings import ReasonerSettings
from cosmos3_serve.weights.model_cache import settle_model_cache

PURPOSE = b"cosmos3 reasoner replicas"
ONE_MORE = 1  # percent, which Serve rounds up to a whole replica
STOP_MARGIN_S = 30.0


def build_gateways(args: Mapping[str, Any]) -> Any:
    """The gateways, bound; starts the fleet's registry where there is none yet.

    Raises:
        StartRefused, UsageError: with what to change; Serve shows it as the application's message.
    """
    from cosmos3_serve.reasoner.gateway.deployment import ReasonerGateway

    setup = _setup(args)
    _registry(setup)
    return gateways(setup, ReasonerGateway)


def build_replicas(args: Mapping[str, Any]) -> Any:
    """The replicas, bound. Raises as `build_gateways`."""
    from cosmos3_serve.reasoner.engine.replica import replica_deployment

    return replica_deployment(_setup(args))


def gateways(setup: ReasonerSetup, gateway: type[Any]) -> Any:
    """A gateway's class as a bound Serve application."""
    from ray import serve

    return (
        serve.deployment(gateway)
        .options(
            name="gateway",
            **gateway_scaling(setup),
            max_ongoing_requests=16,
            ray_actor_options={"num_cpus": 0},
            health_check_period_s=5.0,
            health_check_timeout_s=30.0,
            graceful_shutdown_wait_loop_s=0.2,
            graceful_shutdown_timeout_s=setup.settings.drain_timeout_s + STOP_MARGIN_S,
            max_surge_percent=ONE_MORE,  # they share a port, and the fresh one listens before an old one leaves
            max_constructor_retry_count=2,
            logging_config={"enable_access_log": False},
        )
        .bind(setup)
    )


def affinity_rules(settings: ReasonerSettings) -> AffinityRules:
    """What gateways and the table must agree on. Raises UsageError: the TTL is too short."""
    return AffinityRules(ttl_s=settings.session_ttl_s, mode=Mode(settings.session_mode))


def cluster_secret(environ: Mapping[str, str] | None = None) -> str:
    """What replicas ask for: derived, so that both applications know it and nobody without Ray's token can.

    Raises:
        StartRefused: code `ray_token_missing`: the cluster has no token, so that anybody could ask Ray itself anyway.
    """
    environ = os.environ if environ is None else environ
    token = environ.get("RAY_AUTH_TOKEN", "").strip()
    path = environ.get("RAY_AUTH_TOKEN_PATH", "").strip()
    if not token and path:
        try:
            token = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            token = ""
    if not token:
        raise StartRefused(
            "this Ray cluster demands no token: its replicas would have no secret",
            code="ray_token_missing",
            remedy="set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN on every node (KubeRay: authOptions.mode: token)",
        )
    return hmac.new(token.encode(), PURPOSE, hashlib.sha256).hexdigest()


def _setup(args: Mapping[str, Any]) -> ReasonerSetup:
    settings = joined_settings(ReasonerSettings, args)
    logs.configure(settings.log_level)
    secret = cluster_secret()
    settle_model_cache()
    settings, model = prepare(settings)
    return ReasonerSetup(settings, model, settings.port, secret)


def _registry(setup: ReasonerSetup) -> None:
    """A second deployment of the same applications keeps the registry, and the sessions in it."""
    import ray

    from cosmos3_serve.reasoner.registry import start_fleet_actor

    try:
        ray.get_actor(setup.names.registry, namespace=NAMESPACE)
    except ValueError:
        settings = setup.settings
        rules = affinity_rules(settings)
        start_fleet_actor(setup.names.registry, rules, settings.workers, settings.log_level, declared=True)
