"""From an HTTP answer that says no to the same failure in our tree.

Our service answers problem+json with a stable code and field errors; a baseline service answers `{"detail": …}`, a 500
plain text. Both become a typed error with the baseline's sentence, `Cosmos3 Ray Serve request failed (<status>): …`.
"""

from __future__ import annotations

import json
from typing import Any

from cosmos3_serve.errors import (
    Conflict,
    Cosmos3Error,
    Cosmos3RayServeError,
    Draining,
    FieldError,
    InputError,
    InvalidRequestId,
    LimitExceeded,
    ModelNotLoaded,
    NotFound,
    NotReady,
    QueueFull,
    Refusal,
    ServiceFailure,
    StorageAuthorizationError,
    Unauthorized,
    UnsupportedMediaType,
    ValidationFailed,
)

SHOWN = 1000  # characters of a foreign text that are shown (docs/contract.md 3)

_BY_CODE: dict[str, type[Cosmos3Error]] = {
    kind.code: kind
    for kind in (InvalidRequestId, StorageAuthorizationError, ModelNotLoaded, NotFound, NotReady, Draining)
}
_BY_STATUS: dict[int, type[Cosmos3Error]] = {
    400: InputError,
    401: Unauthorized,
    403: Refusal,
    404: NotFound,
    409: Conflict,
    413: LimitExceeded,
    415: UnsupportedMediaType,
    422: ValidationFailed,
    429: QueueFull,
    503: NotReady,
}


def parse(body: bytes) -> dict[str, Any]:
    """The JSON object of an error body, or an empty one."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def printable(text: str) -> str:
    """A foreign text for a terminal: no control characters, at most 1000 characters."""
    return "".join(c if c.isprintable() else " " for c in text[:SHOWN]).strip()


def failure(status: int, body: bytes, *, retry_after_s: float | None = None) -> Cosmos3Error:
    """The typed failure of an answer outside 2xx; the code is the server's where it sent one."""
    problem = parse(body)
    detail = problem.get("detail")
    text = detail if isinstance(detail, str) else body[: 4 * SHOWN].decode("utf-8", "replace")
    sentence = f"Cosmos3 Ray Serve request failed ({status}): {printable(text)}"
    code = problem.get("code")
    code = code if isinstance(code, str) and code else None
    remedy = problem.get("remedy")
    kind = _BY_CODE.get(code or "") or _BY_STATUS.get(status)
    if 300 <= status < 400:
        return Cosmos3RayServeError(
            f"the service answered {status}, a redirect, which is not followed: the token must not travel",
            remedy="give the address that the redirect leads to as --endpoint, if you trust it",
            code="redirect_refused",
        )
    if kind is None:
        kind = Cosmos3RayServeError if status < 500 or code is None else ServiceFailure
    return kind(
        sentence,
        remedy=printable(remedy) if isinstance(remedy, str) else None,
        errors=_fields(problem.get("errors")),
        code=code,
        retry_after_s=retry_after_s,
    )


def not_ready(body: bytes) -> NotReady:
    """`GET /ready` said 503: the failing checks with their reasons, or the baseline's one sentence."""
    problem = parse(body)
    checks = problem.get("checks")
    found = [
        FieldError(printable(str(check.get("name", "check"))), printable(str(check.get("reason", ""))))
        for check in (checks if isinstance(checks, list) else [])
        if isinstance(check, dict) and check.get("ok") is not True
    ]
    found = found or list(_fields(problem.get("errors")))
    detail = problem.get("detail")
    reasons = "; ".join(f"{e.field}: {e.message}" for e in found)
    text = reasons or (printable(detail) if isinstance(detail, str) else "the service is not ready")
    return NotReady(text, errors=found, remedy="wait until `cosmos3 ray-health` says ready, then run again")


def _fields(errors: Any) -> tuple[FieldError, ...]:
    found = errors if isinstance(errors, list) else []
    return tuple(
        FieldError(*(printable(str(e.get(key, ""))) for key in ("field", "message", "remedy")))
        for e in found[:100]
        if isinstance(e, dict)
    )
