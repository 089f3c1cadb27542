"""Bodies of OpenAI's endpoints: JSON or a form, with the conditioning file that came along."""

from __future__ import annotations

import asyncio
import hashlib

from starlette.requests import Request

from cosmos3_serve.contract.inputs import UPLOAD
from cosmos3_serve.contract.jsontext import decode_json
from cosmos3_serve.contract.openai_request import Asked, Kind, read_request
from cosmos3_serve.errors import FieldError, InvalidRequest, UnsupportedMediaType
from cosmos3_serve.media.sniff import HEAD_BYTES, sniff
from cosmos3_serve.service.multipart import FormReader

FORM = "multipart/form-data"
FILE_FIELD = "input_reference"
SUFFIXES = {"image/jpeg": ".jpg", "image/png": ".png", "image/webp": ".webp", "video/mp4": ".mp4"}


async def read_body(request: Request, kind: Kind, max_bytes: int) -> tuple[Asked, dict[str, bytes]]:
    """The request, and the files that came with it by name; the sample's `vision_path` names its file.

    Raises:
        InvalidRequest, ValidationFailed, UnsupportedMediaType: the body, or what the file is by its content.
    """
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    file: bytes | None = None
    if kind == "video" and given == FORM:
        content_type = request.headers["content-type"].encode("latin-1")
        # The body's own limit bounds them: a data: URL may take all of it.
        reader = FormReader(content_type, max_field_bytes=max_bytes, max_form_bytes=max_bytes)
        parts = [part async for part in reader.file(request.stream(), FILE_FIELD, required=False)]
        file = b"".join(parts) if reader.form.has_file else None
        asked = await asyncio.to_thread(read_request, reader.form.fields, kind, file=file)
    elif given in ("", "application/json"):
        body = await request.body()
        asked = await asyncio.to_thread(lambda: read_request(decode_json(body), kind))
    else:
        accepted = f"application/json or {FORM}" if kind == "video" else "application/json"
        raise UnsupportedMediaType(f"{given[:100]!r} is not accepted here", remedy=f"send {accepted}")
    if asked.reference is None:
        return asked, {}
    name = await asyncio.to_thread(_name_of, asked.reference, asked.reference_field)
    asked.sample["vision_path"] = UPLOAD + name
    return asked, {name: asked.reference}


def _name_of(content: bytes, field: str) -> str:
    """A name by content, so that the same request is the same batch; its suffix says what the content is."""
    found = sniff(content[:HEAD_BYTES])
    suffix = SUFFIXES.get(found.mime)
    if suffix is None:
        message = f"is {found.name or 'of no known format'}, not a picture or clip that this service reads"
        remedy = "send PNG, JPEG, WebP or MP4"
        raise InvalidRequest(
            f"{field}: {message}", remedy=remedy, errors=[FieldError(field, message, remedy)], code="field_invalid"
        )
    return hashlib.sha256(content).hexdigest()[:32] + suffix
