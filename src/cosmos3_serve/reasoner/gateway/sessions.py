"""Sessions, told: /v1/sessions and its explain. Changes nothing, and shows keys as digests only.

The list is the fleet's table, not what this gateway happens to know: every gateway answers the same, and a tenant sees
its own sessions. Where the table cannot be asked there is no list, rather than a part of one.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cosmos3_serve.errors import FieldError, InvalidRequest, NotReady
from cosmos3_serve.reasoner.fleet.replicas import ReplicaRef
from cosmos3_serve.reasoner.gateway.front import Front
from cosmos3_serve.reasoner.sessions.explain import explain
from cosmos3_serve.reasoner.sessions.messages import PageAsk, SessionPage, SessionRow, TableAway, TableStats
from cosmos3_serve.reasoner.sessions.policy import Profile
from cosmos3_serve.service.auth import tenant_of

PAGE, MAX_PAGE = 100, 1000
RETRY_S = 2.0
_KEY = re.compile(r"[0-9a-f]{1,64}")


def session_routes(front: Front) -> list[Route]:
    router = front.router

    async def listing(request: Request) -> Response:
        ask = _page_ask(request, front.keys.owner(tenant_of(request.scope)))
        page = None if router.profile is Profile.ROUND_ROBIN else await _page(ask)
        rows = [] if page is None else [_row(row) for row in page.rows]
        return JSONResponse(
            {
                "object": "list",
                "data": rows,
                "first_id": rows[0]["id"] if rows else None,
                "last_id": rows[-1]["id"] if rows else None,
                "has_more": page is not None and page.more,
                "profile": router.profile.value,
                "mode": router.leases.rules.mode.value,
                "ttl_s": router.leases.rules.ttl_s,
                "table": None if page is None else _totals(page.stats),
            }
        )

    async def _page(ask: PageAsk) -> SessionPage:
        try:
            return await router.leases.port.page(ask)
        except TableAway:
            raise NotReady(
                "the session table cannot be asked now",
                code="session_table_away",
                remedy="ask again in some seconds; questions are answered meanwhile",
                retry_after_s=RETRY_S,
            ) from None

    def _row(row: SessionRow) -> dict[str, Any]:
        home = row.home or row.pending
        idle = row.home is not None and not row.live
        return {
            "object": "session",
            "id": row.key,
            "replica": home.id if home else None,
            "state": "bound" if row.home else "pending",
            "in_flight": row.live,
            "idle_s": round(row.idle_s, 3),
            "expires_in_s": round(router.leases.rules.ttl_s - row.idle_s, 3) if idle else None,
        }

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


def _totals(stats: TableStats) -> dict[str, Any]:
    """Of all tenants."""
    return {"sessions": stats.sessions, "live": dict(stats.live), "expired": dict(stats.expired),
            "evicted": dict(stats.evicted), "overflow": stats.overflow, "gateways": stats.gateways}  # fmt: skip


def _page_ask(request: Request, owner: str) -> PageAsk:
    """
    Raises:
        InvalidRequest: a page size out of bounds, or a cursor that this service never gave.
    """
    limit, after = request.query_params.get("limit", str(PAGE)), request.query_params.get("after", "")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 9 and 1 <= int(limit) <= MAX_PAGE):
        raise _invalid("limit", f"limit must be a whole number from 1 to {MAX_PAGE}")
    if after and not _KEY.fullmatch(after):
        raise _invalid("after", "after must be the last_id of an earlier page")
    return PageAsk(owner, after, int(limit))


def _invalid(field: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, errors=(FieldError(field, message),))


def _fields(told: Any) -> dict[str, Any]:
    """The explanation's fields; references keep their class, which `asdict` would turn into tuples."""
    found = {name: getattr(told, name) for name in told.__dataclass_fields__}
    return {**found, "replicas": [asdict(row) for row in told.replicas], "steps": list(told.steps)}


def _ref(ref: ReplicaRef) -> dict[str, Any]:
    return {"id": ref.id, "incarnation": ref.incarnation}
