"""What the service says about itself: /health, /ready, /models, /system-info, /metrics."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cosmos3_serve.contract.defaults import defaults_sha256
from cosmos3_serve.contract.targets import judge_targets
from cosmos3_serve.contract.views import BatchLimits, Check, ReadyReport
from cosmos3_serve.errors import NotReady
from cosmos3_serve.generator.http.front import Front
from cosmos3_serve.service.metrics import CONTENT_TYPE
from cosmos3_serve.service.problems import problem_message

NOT_READY = "model deployment is not ready"  # the baseline's text
RETRY_S = 5.0


def info_routes(front: Front) -> list[Route]:
    settings, profile = front.settings, front.profile

    async def health(_: Request) -> Response:
        # Liveness only: asks nothing and nobody, so that it answers in milliseconds whatever the load.
        return JSONResponse({"status": "ok", "backend": profile.backend})

    async def ready(_: Request) -> Response:
        report = await ready_report(front)
        if report.status == "ready":
            return JSONResponse(report.model_dump(mode="json"))
        error = NotReady(NOT_READY, remedy="see `checks`: each says what it waits for", retry_after_s=RETRY_S)
        # `status` stays the number that RFC 9457 wants.
        known = report.model_dump(mode="json", exclude={"status"})
        status, headers, body = problem_message(error, known)
        return Response(body, status, {k.decode(): v.decode() for k, v in headers})

    async def models(_: Request) -> Response:
        return JSONResponse([settings.model])

    async def system_info(_: Request) -> Response:
        return JSONResponse(dict(await front.system()))

    async def metrics(_: Request) -> Response:
        return Response(front.metrics.render(), media_type=CONTENT_TYPE)

    return [
        Route("/health", health),
        Route("/ready", ready),
        Route("/models", models),
        Route("/system-info", system_info),
        Route("/metrics", metrics),
    ]


def _target(front: Front) -> dict[str, Any]:
    if front.engine is None or front.engine.capabilities is None:
        return {}
    forced = front.settings.force_unsupported_gpu
    verdict = judge_targets(front.profile.engine, front.engine.capabilities, forced=forced)
    return {"target": verdict.target, "target_status": verdict.status.value, "target_forced": verdict.forced}


async def ready_report(front: Front) -> ReadyReport:
    """Every check with its reason, and what is known of the engine so far."""
    settings, profile, engine = front.settings, front.profile, front.engine
    checks = [Check(name=f.name, ok=f.ok, reason=f.reason) for f in await front.readiness.findings()]
    report = ReadyReport(
        backend=profile.backend,
        model=settings.model,
        guardrails=settings.guardrails,
        world_size=settings.world_size,
        max_batch_size=settings.max_batch_size,
        model_max_ongoing_requests=front.max_ongoing,
        batch_wait_timeout_s=settings.batch_wait_timeout_s,
        framework_revision=profile.revision,
        server_source_revision=front.source_revision,
        engine=profile.engine,
        checkpoint=engine.checkpoint if engine else "",
        checkpoint_revision=engine.checkpoint_revision if engine else None,
        checkpoint_digest=engine.checkpoint_digest if engine else None,
        weights=engine.weights if engine else "unknown",
        payload_verified=front.payload_verified,
        assets=list(front.assets),
        guardrails_effective=settings.guardrails and any(c.ok for c in checks if c.name == "guardrails"),
        max_num_seqs=engine.max_num_seqs if engine else None,
        queue_depth=front.batches.stats().depth if front.batches else None,
        custom_defaults=bool(profile.custom_defaults),
        defaults_sha256=defaults_sha256(profile.custom_defaults),
        limits=BatchLimits(body_bytes=settings.max_body_bytes, samples=settings.max_samples),
        **_target(front),
        checks=checks,
    )
    front.metrics.ready(report.status == "ready")  # the service looks every few seconds, also where no probe asks
    return report
