"""OpenAI's endpoints for pictures and videos: each request is a batch of one sample in the same ledger."""

from __future__ import annotations

import asyncio
import base64
import uuid
from contextlib import suppress
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cosmos3_serve.contract.batch import BatchRequest
from cosmos3_serve.contract.openai_answers import image_answer, video_object
from cosmos3_serve.contract.openai_request import Kind
from cosmos3_serve.contract.resolve import resolve_sample
from cosmos3_serve.contract.resolved import ResolvedSample
from cosmos3_serve.contract.sample import SampleOverrides
from cosmos3_serve.contract.views import BatchState, BatchView
from cosmos3_serve.contract.wire import VISION_IMAGE, VISION_VIDEO
from cosmos3_serve.errors import (
    Conflict,
    Cosmos3Error,
    FieldError,
    InputError,
    InvalidRequest,
    ModelNotLoaded,
    NotFound,
)
from cosmos3_serve.generator.http.artifacts import ArtifactSender
from cosmos3_serve.generator.http.batches import accepting_batches, ended_or_left, open_batches
from cosmos3_serve.generator.http.front import BatchService, Front
from cosmos3_serve.generator.http.openai_body import read_body
from cosmos3_serve.generator.http.openai_errors import in_request_terms, sample_failure
from cosmos3_serve.service.auth import tenant_of

PREFIX = {"image": "image_", "video": "video_"}
FILE = {"image": VISION_IMAGE, "video": VISION_VIDEO}
LIST_DEFAULT, LIST_MAX = 20, 100
END_S = 10.0  # for a cancelled sample to reach its next step, before DELETE answers that it has not ended
SCAN_PAGE = 500  # summaries that one look into the ledger takes


def openai_routes(front: Front, files: ArtifactSender) -> list[Route]:
    retention_s = front.settings.retention_hours * 3600.0

    async def images(request: Request) -> Response:
        asked = await _submitted(front, request, "image", detached=False)
        if asked is None:
            return Response(status_code=499)  # nobody reads it: the client has left
        view, response_format = asked
        path = _artifact(view, "image")
        if response_format == "url":
            data = {"url": str(request.url.replace(path=f"/v1/artifacts/{path}", query="", fragment=""))}
        else:
            content = await files.content(path, tenant_of(request.scope))
            data = {"b64_json": (await asyncio.to_thread(base64.b64encode, content)).decode()}
        return JSONResponse(image_answer(int(view.created_at.timestamp()), data, view.samples[0].seed))

    async def create(request: Request) -> Response:
        asked = await _submitted(front, request, "video", detached=True)
        assert asked is not None  # nobody waited
        return JSONResponse(await shown(asked[0], tenant_of(request.scope)))

    async def sync(request: Request) -> Response:
        asked = await _submitted(front, request, "video", detached=False)
        if asked is None:
            return Response(status_code=499)
        view = asked[0]
        answer = await files.answer(request, _artifact(view, "video"))
        answer.headers["x-video-id"] = view.request_id
        return answer

    async def listing(request: Request) -> Response:
        batches, tenant = open_batches(front), tenant_of(request.scope)
        limit, after = _limit(request), request.query_params.get("after") or None
        found = await _videos(batches, tenant, limit + 1, after)
        data = [await shown(view, tenant) for view in found[:limit]]
        return JSONResponse(
            {
                "object": "list",
                "data": data,
                "first_id": data[0]["id"] if data else None,
                "last_id": data[-1]["id"] if data else None,
                "has_more": len(found) > limit,
            }
        )

    async def one(request: Request) -> Response:
        tenant = tenant_of(request.scope)
        return JSONResponse(await shown(await _video(open_batches(front), request, tenant), tenant))

    async def content(request: Request) -> Response:
        tenant = tenant_of(request.scope)
        variant = request.query_params.get("variant", "video")
        if variant != "video":
            raise _bad("variant", "has no such file here", "leave it out: the video itself is served")
        view = await _video(open_batches(front), request, tenant)
        return await files.answer(request, _artifact(view, "video"))

    async def delete(request: Request) -> Response:
        tenant = tenant_of(request.scope)
        batches = open_batches(front)
        request_id = (await _video(batches, request, tenant)).request_id
        await batches.cancel(request_id, tenant=tenant)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await batches.wait_ended(request_id, tenant=tenant)
        if not await batches.expire(request_id, tenant=tenant):
            raise _not_ended(request_id, "it is cancelled; delete it again once it has ended")
        return JSONResponse({"id": request_id, "object": "video.deleted", "deleted": True})

    async def shown(view: BatchView, tenant: str) -> dict[str, Any]:
        resolved: ResolvedSample | None
        try:
            stored = await open_batches(front).request(view.request_id, tenant=tenant)
            resolved = await asyncio.to_thread(_resolved, front, stored)
        except NotFound:
            raise
        except (Cosmos3Error, ValidationError, LookupError, TypeError):
            resolved = (
                None  # the stored request is unreadable, or this engine would refuse it: the rest can still be told
            )
        return video_object(view, resolved, retention_s=retention_s)

    return [
        Route("/v1/images/generations", images, methods=["POST"]),
        Route("/v1/videos", create, methods=["POST"]),
        Route("/v1/videos", listing, methods=["GET"]),
        Route("/v1/videos/sync", sync, methods=["POST"]),
        Route("/v1/videos/{id}", one, methods=["GET"]),
        Route("/v1/videos/{id}", delete, methods=["DELETE"]),
        Route("/v1/videos/{id}/content", content, methods=["GET"]),
    ]


async def _submitted(front: Front, request: Request, kind: Kind, *, detached: bool) -> tuple[BatchView, str] | None:
    """The accepted batch, ended unless `detached`, and the wanted response format; None when the client left first,
    and then the batch is cancelled."""
    settings, tenant = front.settings, tenant_of(request.scope)
    accepting_batches(front)
    asked, uploads = await read_body(request, kind, settings.max_body_bytes)
    model = asked.model or settings.model
    if model != settings.model:
        raise ModelNotLoaded(
            f"model {model[:128]!r} is not loaded",
            remedy=f"use {settings.model!r}, or leave it out",
            errors=[FieldError("model", "is not loaded")],
        )
    request_id = PREFIX[kind] + uuid.uuid4().hex
    one = BatchRequest(samples=[{"name": kind, **asked.sample}], model=model, request_id=request_id, uploads=uploads)
    batches = accepting_batches(front)
    try:
        view = await batches.submit(one, tenant=tenant, detached=detached)
    except InputError as error:
        raise in_request_terms(error, kind) from None
    if detached:
        return view, asked.response_format
    if not await ended_or_left(batches, request, request_id, tenant):
        await batches.cancel(request_id, tenant=tenant)
        return None
    return await batches.view(request_id, tenant=tenant), asked.response_format


def _artifact(view: BatchView, kind: Kind) -> str:
    """Path of the one file that was asked for. Raises Conflict (`batch_not_ended`), or why there is none."""
    if view.ended_at is None:
        raise _not_ended(view.request_id, "poll GET /v1/videos/{id} until its status is completed")
    if view.state is not BatchState.SUCCEEDED:
        raise sample_failure(view.samples[0])
    return f"{view.request_id}/{kind}/{FILE[kind]}"


async def _video(batches: BatchService, request: Request, tenant: str) -> BatchView:
    """The batch behind a video id. Raises NotFound, also for one that expired or was deleted."""
    request_id = str(request.path_params["id"])
    if not request_id.startswith(PREFIX["video"]):
        raise NotFound(f"no video {request_id[:128]!r}")
    view = await batches.view(request_id, tenant=tenant)
    if view.state is BatchState.EXPIRED:
        raise NotFound(f"video {request_id!r} expired or was deleted", code="batch_expired")
    return view


async def _videos(batches: BatchService, tenant: str, limit: int, after: str | None) -> list[BatchView]:
    """The tenant's videos, newest first."""
    found: list[BatchView] = []
    while True:
        page = await batches.list(tenant=tenant, limit=SCAN_PAGE, after=after)
        for summary in page:
            if summary.request_id.startswith(PREFIX["video"]) and summary.state is not BatchState.EXPIRED:
                try:
                    found.append(await batches.view(summary.request_id, tenant=tenant))
                except Cosmos3Error:
                    continue  # expired meanwhile, or its rows are damaged
            if len(found) == limit:
                return found
        if len(page) < SCAN_PAGE:
            return found
        after = page[-1].request_id


def _resolved(front: Front, stored: dict[str, Any]) -> ResolvedSample:
    return resolve_sample(SampleOverrides.model_validate(stored["samples"][0]), front.profile, seed=0)


def _limit(request: Request) -> int:
    if request.query_params.get("order", "desc") != "desc":
        raise _bad("order", "should be desc", "leave it out: the newest come first")
    given = request.query_params.get("limit", str(LIST_DEFAULT))
    if not (given.isascii() and given.isdigit() and len(given) < 9 and 1 <= int(given) <= LIST_MAX):
        raise _bad("limit", f"should be 1 to {LIST_MAX}", f"leave it out for {LIST_DEFAULT}")
    return int(given)


def _not_ended(request_id: str, remedy: str) -> Conflict:
    return Conflict(f"{request_id} has not ended", code="batch_not_ended", remedy=remedy, retry_after_s=2.0)


def _bad(field: str, message: str, remedy: str) -> InvalidRequest:
    return InvalidRequest(
        f"{field}: {message}", remedy=remedy, errors=[FieldError(field, message, remedy)], code="field_invalid"
    )
