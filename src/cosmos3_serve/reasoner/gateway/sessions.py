"""What the router knows, told: /v1/sessions and its explain. Changes nothing, and shows keys as digests only."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cosmos3_serve.reasoner.explain import explain
from cosmos3_serve.reasoner.fleet import ReplicaRef
from cosmos3_serve.reasoner.gateway.front import Front
from cosmos3_serve.reasoner.policy import Profile
from cosmos3_serve.reasoner.port import TableAway
from cosmos3_serve.service.auth import tenant_of

MAX_SHOWN = 1000


def session_routes(front: Front) -> list[Route]:
    router = front.router

    async def listing(_: Request) -> Response:
        now = front.clock()
        homes = sorted(router.leases.homes(now).items()) if router.profile is Profile.SESSION_AFFINITY else []
        shown = [
            {"object": "session", "key": key, "replica": home.id, "in_flight": router.leases.live(key)}
            for key, home in homes[:MAX_SHOWN]
        ]
        table = await _table()
        return JSONResponse(
            {
                "object": "list",
                "data": shown,
                "has_more": len(homes) > MAX_SHOWN,
                "profile": router.profile.value,
                "mode": router.leases.rules.mode.value,
                "ttl_s": router.leases.rules.ttl_s,
                "table": table,
                "counters": router.counters.rows(table["expired"] if table else None),
                "retries": router.counters.retries,
                "waiting": len(front.line),
            }
        )

    async def _table() -> dict[str, Any] | None:
        if router.profile is Profile.ROUND_ROBIN:
            return None
        try:
            stats = await router.leases.port.stats()
        except TableAway:
            return None
        return {"sessions": stats.sessions, "live": dict(stats.live), "expired": dict(stats.expired),
                "evicted": dict(stats.evicted), "overflow": stats.overflow, "gateways": stats.gateways}  # fmt: skip

    async def explained(request: Request) -> Response:
        tenant = tenant_of(request.scope)
        given = request.query_params.get("key")
        keys = front.keys
        if given is not None:
            key = keys.named(given.encode("utf-8", "replace"), tenant, "key")
        else:
            key = keys.from_headers(request.scope["headers"], tenant)
        told = await explain(router, key, front.clock())
        shown = {k: _ref(v) if isinstance(v, ReplicaRef) else v for k, v in _fields(told).items()}
        return JSONResponse({"object": "session.explanation", **shown})

    return [
        Route("/v1/sessions", listing),
        Route("/v1/sessions/explain", explained),
    ]


def _fields(told: Any) -> dict[str, Any]:
    """The explanation's fields; references keep their class, which `asdict` would turn into tuples."""
    found = {name: getattr(told, name) for name in told.__dataclass_fields__}
    return {**found, "replicas": [asdict(row) for row in told.replicas], "steps": list(told.steps)}


def _ref(ref: ReplicaRef) -> dict[str, Any]:
    return {"id": ref.id, "incarnation": ref.incarnation}
