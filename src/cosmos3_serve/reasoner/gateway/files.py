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
from cosmos3_serve.reasoner.gateway.multipart import Form, FormReader
from cosmos3_serve.reasoner.media.blobs import Blob
from cosmos3_serve.service.auth import tenant_of

PURPOSES = frozenset({"vision", "user_data", "assistants", "batch", "fine-tune", "evals"})
DEFAULT_PURPOSE = "vision"
FORM_BYTES = 1024 * 1024  # around the file: boundaries, headers, short fields
MAX_PAGE = 1000


def file_routes(front: Front) -> list[Route]:
    uploads = front.gate.uploads

    async def create(request: Request) -> Response:
        front.check_open()
        reader = FormReader(request.headers.get("content-type", "").encode("latin-1"))
        limit = front.limits.max_media_bytes + FORM_BYTES
        file = reader.file(chunks(request.scope, request.receive, limit))
        first = await anext(file, b"")  # from here on the name is known, and the purpose where it stands before
        purpose = _purpose(reader.form)
        tenant = tenant_of(request.scope)
        name = reader.form.filename
        record = await front.gate.upload(_chained(first, file), tenant, filename=name, purpose=purpose)
        if _late_purpose(reader.form, purpose):
            await uploads.delete(tenant, record.id)
            raise _wrong_purpose("purpose must stand before the file")
        return JSONResponse(record.as_object())

    async def listing(request: Request) -> Response:
        limit = _number(request.query_params.get("limit", "100"), "limit", MAX_PAGE)
        after = request.query_params.get("after", "")
        tenant = tenant_of(request.scope)
        found = await uploads.list(tenant, limit=limit + 1, after=after)
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


def _purpose(form: Form) -> str:
    """
    Raises:
        InvalidRequest: one that OpenAI does not know either.
    """
    purpose = form.fields.get("purpose", DEFAULT_PURPOSE)
    if purpose not in PURPOSES:
        raise _wrong_purpose(f"purpose must be one of {', '.join(sorted(PURPOSES))}")
    return purpose


def _late_purpose(form: Form, used: str) -> bool:
    return form.fields.get("purpose", used) != used


def _wrong_purpose(message: str) -> InvalidRequest:
    return InvalidRequest(message, errors=(FieldError("purpose", message),))


def _number(text: str, name: str, most: int) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text) <= most:
        return int(text)
    message = f"{name} must be a whole number from 1 to {most}"
    raise InvalidRequest(message, errors=(FieldError(name, message),))


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
