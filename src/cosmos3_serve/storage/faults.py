"""What an S3 client's exception means. Its text is never shown: it carries URLs, key ids and signed strings."""

from __future__ import annotations

import re
from typing import NoReturn

from obstore import exceptions

from cosmos3_serve.errors import Conflict, Cosmos3Error, NotFound, RangeNotSatisfiable, StorageFailure
from cosmos3_serve.retry import PASSING_READ_STATUSES, PASSING_S3_CODES
from cosmos3_serve.storage.store import no_conditional_put

_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_ERROR_DOCUMENT = re.compile(rb"\s*(<\?xml[^>]*>\s*)?<Error>")
_S3_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,64})</Code>")
_REGION = re.compile(r"(?:expecting &#39;|expecting '|<Region>)([a-z0-9-]{2,40})")

# Requests for credentials: to STS (the client shows no URL), a container's endpoint, instance metadata.
_FOR_CREDENTIALS = re.compile(
    r"Error performing [A-Z]+ (REDACTED|http://169\.254\.|http://[^/\s]+/(v[12]/credentials|latest/))"
)
_WRONG_REGION = frozenset({"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"})
# What stores say that do not know conditions on a PUT; other 400s have other reasons.
_UNKNOWN_CONDITION = frozenset({"", "InvalidArgument", "InvalidRequest", "BadRequest"})


def translate(error: Exception, action: str, *, conditional: bool = False) -> Cosmos3Error:
    """The typed failure for an exception of the S3 client; `action` completes "cannot …".

    Args:
        conditional: it was a PUT with `If-None-Match: *` or `If-Match`.
    """
    text = str(error)
    status, s3_code = _evidence(text)
    shown = f" ({s3_code or f'HTTP {status}'})" if s3_code or status else ""
    if isinstance(error, exceptions.PreconditionError) and conditional and s3_code != "NoSuchBucket":
        # `If-Match` on an object that is gone: S3 answers 404
        return Conflict(f"cannot {action}: the object was replaced or removed meanwhile", code="precondition_failed")
    if known := _diagnosed(text, action, status, s3_code):
        return known
    if isinstance(error, FileNotFoundError | exceptions.NotFoundError) or status == 404:
        if s3_code == "NoSuchBucket":
            return NotFound(
                f"cannot {action}: there is no such bucket",
                code="bucket_not_found",
                remedy="check the bucket's name, and that the endpoint and region are the bucket's",
            )
        return NotFound(f"cannot {action}: there is no such object", code="object_not_found")
    if isinstance(error, exceptions.AlreadyExistsError) and conditional:
        return Conflict(f"cannot {action}: the object exists already", code="object_exists")
    if isinstance(error, exceptions.AlreadyExistsError):
        # 409 to a request without a condition: S3's OperationAborted, and ConditionalRequestConflict while another
        # write of the key is under way.
        return StorageFailure(
            f"cannot {action}: another operation on the object was in progress{shown}", code="storage_unavailable"
        )
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
    if status in PASSING_READ_STATUSES or s3_code in PASSING_S3_CODES:
        return StorageFailure(f"cannot {action}: object storage is busy or failing{shown}", code="storage_unavailable")
    if status:
        return StorageFailure(f"cannot {action}: object storage refused it{shown}")
    if isinstance(error, exceptions.InvalidPathError):
        return StorageFailure(f"cannot {action}: a key there cannot be read exactly", code="storage_foreign_key")
    if isinstance(error, exceptions.NotSupportedError | NotImplementedError):
        return StorageFailure(f"cannot {action}: object storage does not support it")
    if "TimedOut" in text or "operation timed out" in text or isinstance(error, TimeoutError):
        return StorageFailure(f"cannot {action}: object storage did not answer in time", code="storage_timeout")
    if isinstance(error, exceptions.BaseError | OSError):  # no answer at all: refused, reset, cut
        return StorageFailure(f"cannot {action}: the connection to object storage failed", code="storage_unavailable")
    return StorageFailure(f"cannot {action}: {type(error).__name__}")


def _diagnosed(text: str, action: str, status: int, s3_code: str) -> StorageFailure | None:
    """Causes that the text of the exception gives away, beyond status and code."""
    if not status and "InvalidCertificate" in text:
        return StorageFailure(
            f"cannot {action}: the certificate of object storage is not trusted",
            code="storage_certificate_untrusted",
            remedy="name the authority's PEM file in AWS_CA_BUNDLE or SSL_CERT_FILE; check the endpoint's host name",
        )
    if _FOR_CREDENTIALS.search(text.partition("\n\nDebug source")[0]):
        return StorageFailure(
            f"cannot {action}: no credentials came from the configured source",
            code="storage_credentials_unavailable",
            remedy="check the web identity (AWS_ROLE_ARN, AWS_WEB_IDENTITY_TOKEN_FILE), the container's credentials "
            "endpoint or the machine's role, whichever is configured",
        )
    if s3_code in _WRONG_REGION or status == 301 or "redirect without LOCATION" in text:
        found = _REGION.search(text.partition("\n\nDebug source")[0])
        return StorageFailure(
            f"cannot {action}: the bucket is in another region than the requests are signed for",
            code="storage_wrong_region",
            remedy=f"set AWS_REGION={found[1]}" if found else "set AWS_REGION to the bucket's region, and the endpoint",
        )
    if "Object Lock" in text and status == 400:
        return StorageFailure(
            f"cannot {action}: the bucket has a default Object Lock retention, which demands checksums",
            code="storage_object_lock",
            remedy="publish to a bucket without default retention, and lock the finished publication there",
        )
    return None


def refuse_error_body(etag: str | None, data: bytes) -> None:
    """An answer 200 whose body is S3's error document, as some gateways give; every object has an entity tag.

    Raises:
        StorageFailure: code `storage_unavailable`.
    """
    if etag is None and _ERROR_DOCUMENT.match(data):
        code = _S3_CODE.search(data[:4096].decode("utf-8", "replace"))
        shown = f" ({code.group(1)})" if code else ""
        raise StorageFailure(f"object storage answered 200 with an error{shown}", code="storage_unavailable")


def raise_translated(error: Exception, action: str) -> NoReturn:
    """Raise the typed failure without its cause: a chained traceback would print what `translate` hides."""
    raise translate(error, action) from None


def _evidence(text: str) -> tuple[int, str]:
    """HTTP status and S3 error code, read behind the request line so that no key can pose as either."""
    text = text.partition("\n\nDebug source")[0].rpartition("Error performing ")[2]
    status, code = _STATUS.search(text), _S3_CODE.search(text)
    return int(status.group(1)) if status else 0, code.group(1) if code else ""
