"""Failures on OpenAI's paths, in OpenAI's shape: statuses and field names are those that its clients know."""

from __future__ import annotations

from cosmos3_serve.contract.openai_request import Kind, request_field
from cosmos3_serve.contract.views import SampleView
from cosmos3_serve.errors import (
    Conflict,
    Cosmos3Error,
    EngineFailed,
    EngineStalled,
    FieldError,
    InputError,
    InvalidRequest,
    NotReady,
    SampleCode,
    StorageFailure,
)
from cosmos3_serve.service.openai_errors import error_message
from cosmos3_serve.service.problems import Headers

PREFIXES = ("/v1/images", "/v1/videos")


def speaks_openai(path: str) -> bool:
    return any(path == prefix or path.startswith(prefix + "/") for prefix in PREFIXES)


def openai_message(error: Cosmos3Error) -> tuple[int, Headers, bytes]:
    """Status, headers and body. What is 422 elsewhere is 400 here, as OpenAI answers it."""
    status, headers, body = error_message(error)
    return (400 if status == 422 else status), headers, body


def in_request_terms(error: InputError, kind: Kind) -> InputError:
    """A refusal of the sample, told in the fields of the request that made it."""
    if not error.errors:
        return error
    found = [FieldError(request_field(item.field, kind), item.message, item.remedy) for item in error.errors]
    first = found[0]
    return type(error)(
        f"{first.field}: {first.message}",
        remedy=first.remedy or error.remedy,
        errors=found,
        code=error.stable_code,
        retry_after_s=error.retry_after_s,
    )


def sample_failure(sample: SampleView) -> Cosmos3Error:
    """Why a request that waited for its sample gets no result."""
    code = SampleCode(sample.code) if sample.code else SampleCode.ENGINE_FAILED
    text = sample.message or "the sample failed"
    match code:
        case SampleCode.GUARDRAIL_BLOCKED | SampleCode.INPUT_INVALID:
            return InvalidRequest(text, code=code.value)
        case SampleCode.CANCELLED:
            return Conflict(text, code=code.value)
        case SampleCode.STAGING_FAILED:
            return StorageFailure(text, code=code.value)
        case SampleCode.INTERRUPTED:
            return NotReady(text, code=code.value, retry_after_s=10.0)
        case SampleCode.ENGINE_STALLED | SampleCode.DEADLINE_EXCEEDED:
            return EngineStalled(text, code=code.value)
        case _:
            return EngineFailed(text, code=code.value)
