"""Failures in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`, with `remedy` besides where known."""

from __future__ import annotations

import json
import math
from typing import Any

from cosmos3_serve.errors import Cosmos3Error
from cosmos3_serve.service.problems import Headers

DONE = b"data: [DONE]\n\n"

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
# Where OpenAI has a code of its own for what we call otherwise.
_CODES = {"unauthorized": "invalid_api_key", "model_not_loaded": "model_not_found"}


def error_object(error: Cosmos3Error) -> dict[str, Any]:
    """The body of an answer. `param` is the first field that is wrong."""
    fields = [found.field for found in error.errors if found.field]
    found: dict[str, Any] = {
        "message": error.detail,
        "type": error_type(error.status),
        "param": fields[0] if fields else None,
        "code": _CODES.get(error.stable_code, error.stable_code),
    }
    if error.remedy:
        found["remedy"] = error.remedy
    return {"error": found}


def error_type(status: int) -> str:
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")


def error_message(error: Cosmos3Error) -> tuple[int, Headers, bytes]:
    """Status, headers and body, as `Problems` and `BearerAuth` take them."""
    return _message(error.status, error_object(error), error.retry_after_s)


def _message(status: int, value: dict[str, Any], retry_after_s: float | None) -> tuple[int, Headers, bytes]:
    body = json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if retry_after_s is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(retry_after_s))).encode()))
    return status, headers, body


def error_event(value: dict[str, Any]) -> bytes:
    """The end of a stream that broke: one error event, then `[DONE]`."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n\n" + DONE
