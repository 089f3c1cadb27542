"""Batches: submit and wait, submit and follow, look, cancel."""

from __future__ import annotations

import asyncio
import contextlib

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from cosmos3_serve.contract.batch import BatchRequest
from cosmos3_serve.contract.jsontext import decode_json
from cosmos3_serve.contract.parse import parse_batch
from cosmos3_serve.contract.views import BatchView, SampleView
from cosmos3_serve.errors import (
    Draining,
    FieldError,
    ModelNotLoaded,
    NotReady,
    UnsupportedMediaType,
    ValidationFailed,
)
from cosmos3_serve.generator.http.event_stream import EventStream
from cosmos3_serve.generator.http.front import BatchService, Front
from cosmos3_serve.generator.http.front import Response as StoredResponse
from cosmos3_serve.service.auth import tenant_of

LIST_DEFAULT = 50
LIST_MAX = 500
RETRY_S = 5.0
SLICE = 32  # samples of a view that are encoded while nothing else runs
_SAMPLES = TypeAdapter(list[SampleView])


def batch_routes(front: Front) -> list[Route]:
    settings = front.settings

    async def create(request: Request) -> Response:
        tenant = tenant_of(request.scope)
        _require_json(request)
        batches = accepting_batches(front)
        body = await request.body()
        # Up to 8 MiB of JSON and 1,024 samples: seconds of work that must not hold up the other clients.
        batch = await asyncio.to_thread(_parse, body, settings.max_samples)
        if batch.model != settings.model:
            raise ModelNotLoaded(f"model {batch.model!r} is not loaded", remedy=f"use {settings.model!r}")
        detached = _wants_async(request)
        view = await accepting_batches(front).submit(batch, tenant=tenant, detached=detached)
        if detached:
            return await _view(view, 202, {"Location": _path(view.request_id), "Preference-Applied": "respond-async"})
        if not await _wait(front, batches, request, view.request_id, tenant):
            return Response(status_code=499)  # nobody reads it: the client has left
        return _stored(await batches.response(view.request_id, tenant=tenant))

    async def listing(request: Request) -> Response:
        limit = _limit(request.query_params.get("limit"))
        after = request.query_params.get("after") or None
        views = await open_batches(front).list(tenant=tenant_of(request.scope), limit=limit, after=after)
        full = len(views) == limit
        return JSONResponse(
            {
                "batches": [view.model_dump(mode="json") for view in views],
                "next": views[-1].request_id if views and full else None,
            }
        )

    async def one(request: Request) -> Response:
        return await _view(await open_batches(front).view(_id(request), tenant=tenant_of(request.scope)))

    async def response(request: Request) -> Response:
        return _stored(await open_batches(front).response(_id(request), tenant=tenant_of(request.scope)))

    async def events(request: Request) -> Response:
        batches, tenant, request_id = open_batches(front), tenant_of(request.scope), _id(request)
        last = _last_event_id(request)
        await batches.view(request_id, tenant=tenant)  # 404 has to come before the stream begins
        return EventStream(batches.events(request_id, tenant=tenant, last_event_id=last))

    async def cancel(request: Request) -> Response:
        return await _view(await open_batches(front).cancel(_id(request), tenant=tenant_of(request.scope)))

    return [
        Route("/v1/batches", create, methods=["POST"]),
        Route("/v1/batches", listing, methods=["GET"]),
        Route("/v1/batches/{id}", one, methods=["GET"]),
        Route("/v1/batches/{id}", cancel, methods=["DELETE"]),
        Route("/v1/batches/{id}/response", response, methods=["GET"]),
        Route("/v1/batches/{id}/events", events, methods=["GET"]),
    ]


async def _wait(front: Front, batches: BatchService, request: Request, request_id: str, tenant: str) -> bool:
    """Until the batch ended (True) or the client left (False; then the batch is given up unless others want it)."""
    front.waiters.arrive(tenant, request_id)
    gone = False
    try:
        gone = not await ended_or_left(batches, request, request_id, tenant)
        return not gone
    finally:
        if front.waiters.leave(tenant, request_id) and gone:
            await batches.abandon(request_id, tenant=tenant)


async def ended_or_left(batches: BatchService, request: Request, request_id: str, tenant: str) -> bool:
    """Until the batch ended (True) or the client left (False). Raises as `BatchService.wait_ended`."""
    ended = asyncio.create_task(batches.wait_ended(request_id, tenant=tenant))
    left = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({ended, left}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            ended.result()
            return True
        return False
    finally:
        for task in (ended, left):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await asyncio.gather(ended, left, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _parse(body: bytes, max_samples: int) -> BatchRequest:
    return parse_batch(decode_json(body), max_samples=max_samples)


def open_batches(front: Front) -> BatchService:
    """The batch service, also while it accepts nothing. Raises NotReady."""
    if front.batches is None:
        raise NotReady("the service is starting", retry_after_s=RETRY_S)
    return front.batches


def accepting_batches(front: Front) -> BatchService:
    """The batch service, while it accepts batches. Raises Draining, NotReady."""
    if front.draining:
        raise Draining("the service is shutting down and takes no new batch", retry_after_s=RETRY_S)
    if not front.accepting:
        raise NotReady("the service is starting", remedy="GET /ready says what it waits for", retry_after_s=RETRY_S)
    return open_batches(front)


def _require_json(request: Request) -> None:
    """JSON, or nothing said: the baseline's clients always send JSON."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in ("", "application/json"):
        raise UnsupportedMediaType(f"{given[:100]!r} is not accepted here", remedy="send application/json")


def _wants_async(request: Request) -> bool:
    preferences = ",".join(request.headers.getlist("prefer")).split(",")
    return any(p.partition(";")[0].strip().lower() == "respond-async" for p in preferences)


def _last_event_id(request: Request) -> int:
    given = request.headers.get("last-event-id", "").strip()
    if given and not (given.isascii() and given.isdigit() and len(given) < 16):
        raise ValidationFailed(
            "Last-Event-ID is not a number",
            errors=[FieldError("Last-Event-ID", "should be the id of an event of this batch", "leave it out")],
        )
    return int(given or 0)


def _limit(given: str | None) -> int:
    if given is None:
        return LIST_DEFAULT
    if not (given.isascii() and given.isdigit() and 1 <= int(given[:9]) <= LIST_MAX):
        raise ValidationFailed(
            "limit is out of range",
            errors=[FieldError("limit", f"should be 1 to {LIST_MAX}", f"leave it out for {LIST_DEFAULT}")],
        )
    return int(given[:9])


def _id(request: Request) -> str:
    return str(request.path_params["id"])


def _path(request_id: str) -> str:
    return f"/v1/batches/{request_id}"


def _stored(response: StoredResponse) -> Response:
    headers = {"content-length": str(response.size)}
    return StreamingResponse(response.chunks(), headers=headers, media_type="application/json")


async def _view(view: BatchView, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    if len(view.samples) > SLICE:
        body = await asyncio.to_thread(_encoded, view)
    else:
        body = view.model_dump_json().encode()
    return Response(body, status, headers, media_type="application/json")


def _encoded(view: BatchView) -> bytes:
    """The view as JSON, some samples at a time: in one piece, a thousand would hold up the event loop from here."""
    head, empty, tail = view.model_copy(update={"samples": []}).model_dump_json().encode().partition(b'"samples":[]')
    slices = (view.samples[start : start + SLICE] for start in range(0, len(view.samples), SLICE))
    return b"".join((head, empty[:-1], b",".join(_SAMPLES.dump_json(some)[1:-1] for some in slices), b"]", tail))
