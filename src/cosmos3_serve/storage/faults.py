"""What an S3 client's exception means. Its text is never shown: it carries URLs, key ids and signed strings."""

from __future__ import annotations

import re
from typing import NoReturn

from obstore import exceptions

from cosmos3_serve.errors import Conflict, Cosmos3Error, NotFound, RangeNotSatisfiable, StorageFailure
from cosmos3_serve.storage.store import no_conditional_put

_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_S3_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,64})</Code>")
_PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_PASSING_CODES = frozenset(
    {"InternalError", "ServiceUnavailable", "SlowDown", "RequestTimeout", "Throttling", "ThrottlingException"}
)


# What stores say that do not know conditions on a PUT; other 400s have other reasons.
_UNKNOWN_CONDITION = frozenset({"", "InvalidArgument", "InvalidRequest", "BadRequest"})


def translate(error: Exception, action: str, *, conditional: bool = False) -> Cosmos3Error:
    """The typed failure for an exception of the S3 client; `action` completes "cannot …".

    Args:
        conditional: it was a PUT with `If-None-Match: *` or `If-Match`.
    """
    status, s3_code = _evidence(str(error))
    shown = f" ({s3_code or f'HTTP {status}'})" if s3_code or status else ""
    if isinstance(error, exceptions.PreconditionError) and conditional and s3_code != "NoSuchBucket":
        # `If-Match` on an object that is gone: S3 answers 404
        return Conflict(f"cannot {action}: the object was replaced or removed meanwhile", code="precondition_failed")
    if isinstance(error, FileNotFoundError | exceptions.NotFoundError) or status == 404:
        if s3_code == "NoSuchBucket":
            return NotFound(
                f"cannot {action}: there is no such bucket",
                code="bucket_not_found",
                remedy="check the bucket's name, and that the endpoint and region are the bucket's",
            )
        return NotFound(f"cannot {action}: there is no such object", code="object_not_found")
    if isinstance(error, exceptions.AlreadyExistsError):
        return Conflict(f"cannot {action}: the object exists already", code="object_exists")
    if isinstance(error, exceptions.PreconditionError):
        return StorageFailure(f"cannot {action}: the object was replaced meanwhile", code="object_changed")
    if isinstance(error, exceptions.UnauthenticatedError) or status == 401:
        return StorageFailure(
            f"cannot {action}: object storage did not accept the credentials{shown}",
            code="storage_denied",
            remedy="check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN",
        )
    if isinstance(error, exceptions.PermissionDeniedError) or status == 403:
        return StorageFailure(
            f"cannot {action}: object storage denied it{shown}; a missing object may look so too",
            code="storage_denied",
            remedy="check the credentials, their permission on this bucket, and the clock of this machine",
        )
    unknown = status == 501 or s3_code == "NotImplemented" or (status == 400 and s3_code in _UNKNOWN_CONDITION)
    if conditional and unknown:
        return no_conditional_put(f"cannot {action}: object storage refuses a conditional PUT ({status})")
    if status == 416:
        return RangeNotSatisfiable(f"cannot {action}: the object is shorter than the requested start")
    if status in _PASSING_STATUS or s3_code in _PASSING_CODES:
        return StorageFailure(f"cannot {action}: object storage is busy or failing{shown}", code="storage_unavailable")
    if status:
        return StorageFailure(f"cannot {action}: object storage refused it{shown}")
    if "redirect without LOCATION" in str(error):
        return StorageFailure(
            f"cannot {action}: object storage answered with a redirect",
            remedy="check the endpoint, and that AWS_REGION is the bucket's region",
        )
    if isinstance(error, exceptions.InvalidPathError):
        return StorageFailure(f"cannot {action}: a key there cannot be read exactly", code="storage_foreign_key")
    if isinstance(error, exceptions.NotSupportedError | NotImplementedError):
        return StorageFailure(f"cannot {action}: object storage does not support it")
    if isinstance(error, exceptions.BaseError | OSError):  # no answer at all: refused, reset, cut, timed out
        return StorageFailure(f"cannot {action}: the connection to object storage failed", code="storage_unavailable")
    return StorageFailure(f"cannot {action}: {type(error).__name__}")


def raise_translated(error: Exception, action: str) -> NoReturn:
    """Raise the typed failure without its cause: a chained traceback would print what `translate` hides."""
    raise translate(error, action) from None


def _evidence(text: str) -> tuple[int, str]:
    """HTTP status and S3 error code, read behind the request line so that no key can pose as either."""
    text = text.partition("\n\nDebug source")[0].rpartition("Error performing ")[2]
    status, code = _STATUS.search(text), _S3_CODE.search(text)
    return int(status.group(1)) if status else 0, code.group(1) if code else ""
