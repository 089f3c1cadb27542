"""The files API: upload a video or an image once, then refer to it as `file-id:<id>`. Each tenant sees its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from cosmos3_serve.errors import FieldError, InvalidRequest
from cosmos3_serve.reasoner.gateway.body import chunks
from cosmos3_serve.reasoner.gateway.front import Front
from cosmos3_serve.reasoner.media.blobs import Blob
from cosmos3_serve.service.auth import tenant_of
from cosmos3_serve.service.multipart import MAX_FORM_BYTES, Form, FormReader

PURPOSES = frozenset({"vision", "user_data", "assistants", "batch", "fine-tune", "evals"})
DEFAULT_PURPOSE = "vision"
ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"
FIELDS = frozenset({"purpose", ANCHOR, SECONDS})
MIN_EXPIRY_S = 3600  # as OpenAI's
SPARE_BYTES = 1024 * 1024  # so that a form that is too large is named before the body is
MAX_PAGE = 1000


def file_routes(front: Front) -> list[Route]:
    uploads = front.gate.uploads

    async def create(request: Request) -> Response:
        front.check_open()
        reader = FormReader(request.headers.get("content-type", "").encode("latin-1"))
        limit = front.limits.max_media_bytes + MAX_FORM_BYTES + SPARE_BYTES
        file = reader.file(chunks(request.scope, request.receive, limit))
        first = await anext(file, b"")  # from here on the name is known, and the fields that stand before the file

        def terms() -> tuple[str, float | None]:
            return _terms(reader.form, uploads.max_age_s)

        terms()  # a bad field that came first is refused before the file is read
        record = await front.gate.upload(
            _chained(first, file), tenant_of(request.scope), filename=reader.form.filename, terms=terms
        )
        return JSONResponse(record.as_object())

    async def listing(request: Request) -> Response:
        query = request.query_params
        limit = _number(query.get("limit", "100"), "limit", 1, MAX_PAGE)
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise _bad("order", "order must be asc or desc")
        found = await uploads.list(
            tenant_of(request.scope),
            limit=limit + 1,
            after=query.get("after", ""),
            purpose=query.get("purpose", ""),
            oldest_first=order == "asc",
        )
        page = [record.as_object() for record in found[:limit]]
        ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
        return JSONResponse({"object": "list", "data": page, **ends, "has_more": len(found) > limit})

    async def one(request: Request) -> Response:
        record = await uploads.get(tenant_of(request.scope), request.path_params["id"])
        return JSONResponse(record.as_object())

    async def delete(request: Request) -> Response:
        file_id = request.path_params["id"]
        await uploads.delete(tenant_of(request.scope), file_id)
        return JSONResponse({"id": file_id, "object": "file", "deleted": True})

    async def content(request: Request) -> Response:
        record, blob = await uploads.pin(tenant_of(request.scope), request.path_params["id"])
        return _Content(blob, record.media.mime, record.filename)

    return [
        Route("/v1/files", create, methods=["POST"]),
        Route("/v1/files", listing, methods=["GET"]),
        Route("/v1/files/{id}", one, methods=["GET"]),
        Route("/v1/files/{id}", delete, methods=["DELETE"]),
        Route("/v1/files/{id}/content", content, methods=["GET"]),
    ]


async def _chained(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


def _terms(form: Form, max_age_s: float) -> tuple[str, float | None]:
    """Purpose, and seconds until the file expires, of what has come of the form.

    Raises:
        InvalidRequest: a value out of its range, or a field that does nothing here.
    """
    fields = form.fields
    for name in fields.keys() - FIELDS:
        raise _bad(name[:100], f"there is no field {name[:100]!a}; there are {', '.join(sorted(FIELDS))} and file")
    purpose = fields.get("purpose", DEFAULT_PURPOSE)
    if purpose not in PURPOSES:
        raise _bad("purpose", f"purpose must be one of {', '.join(sorted(PURPOSES))}")
    if fields.get(ANCHOR, "created_at") != "created_at":
        raise _bad(ANCHOR, f"{ANCHOR} must be created_at")
    if SECONDS not in fields:
        return purpose, None
    return purpose, float(_number(fields[SECONDS], SECONDS, MIN_EXPIRY_S, int(max_age_s)))


def _number(text: str, name: str, least: int, most: int) -> int:
    if text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most:
        return int(text)
    raise _bad(name, f"{name} must be a whole number from {least} to {most}")


def _bad(name: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, errors=(FieldError(name, message),))


class _Content(Response):
    """A stored content; in use until it was sent, however that ends."""

    def __init__(self, blob: Blob, mime: str, filename: str) -> None:
        self._blob = blob
        # Never shown by a browser as a page of ours: always a download.
        self._file = FileResponse(blob.path, media_type=mime, filename=filename)
        super().__init__()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._blob:
            await self._file(scope, receive, send)
