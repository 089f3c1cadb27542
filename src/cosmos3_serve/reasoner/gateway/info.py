"""What the service says about itself: /health, /ready, /metrics, /system-info."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cosmos3_serve.errors import NotReady
from cosmos3_serve.reasoner.gateway.front import Front
from cosmos3_serve.service.metrics import CONTENT_TYPE
from cosmos3_serve.service.openai_errors import error_message, error_object

BACKEND = "cosmos3-reasoner-vllm"
RETRY_S = 5.0


def info_routes(front: Front) -> list[Route]:
    async def health(_: Request) -> Response:
        # Liveness only: asks nothing and nobody, so that it answers in milliseconds whatever the load.
        return JSONResponse({"status": "ok", "backend": BACKEND})

    async def ready(_: Request) -> Response:
        report = await ready_report(front)
        if report["status"] == "ready":
            return JSONResponse(report)
        error = NotReady("the reasoner is not ready", remedy="see `checks`: each says what it waits for",
                         retry_after_s=RETRY_S)  # fmt: skip
        status, headers, _body = error_message(error)
        body = json.dumps({**error_object(error), **report}).encode()
        kept = {k.decode(): v.decode() for k, v in headers if k != b"content-length"}
        return Response(body, status, kept)

    async def metrics(_: Request) -> Response:
        engines = await front.replica_figures.render(front.ready_members(), front.clock())
        return Response(front.metrics.render() + engines, media_type=CONTENT_TYPE)

    async def system_info(_: Request) -> Response:
        return JSONResponse(dict(await front.system()))

    return [
        Route("/health", health),
        Route("/ready", ready),
        Route("/metrics", metrics),
        Route("/system-info", system_info),
    ]


async def ready_report(front: Front) -> dict[str, Any]:
    """Every check with its reason, the replicas, and what the model is."""
    findings = await front.readiness.findings()
    checks = [{"name": f.name, "ok": f.ok, "reason": f.reason} for f in findings]
    yes = bool(checks) and all(f.ok for f in findings)
    front.metrics.ready(yes)
    model, settings = front.setup.model, front.settings
    now = front.clock()
    states = front.router.health.fleet(now).replicas
    return {
        "status": "ready" if yes else "not_ready",
        "backend": BACKEND,
        "model": model.name,
        "checkpoint": model.checkpoint,
        "checkpoint_revision": model.revision,
        "checkpoint_digest": model.digest,
        "weights": model.weights,
        "payload_verified": model.verified,
        "max_model_len": model.max_model_len,
        "routing": settings.routing,
        "session_mode": settings.session_mode,
        "session_ttl_s": settings.session_ttl_s,
        "workers": settings.workers.plain(),
        "guardrails": "none: guardrails belong to the generator",
        "replicas": {name: view.state.value for name, view in sorted(states.items())},
        "checks": checks,
    }
