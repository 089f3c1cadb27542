"""The map of failures: every way this package says no, in one tree.

The data's way decides the branch. Read it from the top: what the caller sent, what the service may refuse, what may
break while it works, and what is left unfinished.

    Cosmos3Error
    ├── InputError                 exit 2   the caller can fix it
    │   ├── UsageError             ---      command line or settings
    │   ├── InvalidRequestId       400      request_id is not a safe name
    │   ├── InvalidRequest         400      a chat body that cannot be read, or media that cannot be had
    │   ├── StorageAuthorizationError 400   a URI outside the allowed roots, or one that cannot be fetched exactly
    │   ├── ModelNotLoaded         404      another model than the loaded one
    │   ├── NotFound               404      no such route, batch or artifact
    │   ├── MethodNotAllowed       405
    │   ├── RequestTimeout         408      the body did not arrive in time
    │   ├── Conflict               409      same request_id, other body; publication of another batch; not ended yet
    │   ├── LimitExceeded          413      body, samples, conditioning input: always with the number
    │   ├── UnsupportedMediaType   415
    │   ├── RangeNotSatisfiable    416
    │   └── ValidationFailed       422      errors[] names field, message, remedy
    │       ├── ModeNotSupported   422      this engine does not serve the mode (and what to use instead)
    │       └── DeadlineUnreachable 422     what cannot finish is refused, not timed out
    ├── Refusal                    exit 3   a check says no
    │   ├── Unauthorized           401
    │   ├── StartRefused           ---      settings, guardrails, revision: the service does not start
    │   │   ├── GuardrailsUnavailable
    │   │   └── CheckpointUnavailable ---  access denied, not found, offline, incomplete
    │   ├── QueueFull              429      Retry-After
    │   ├── NotReady               503      Retry-After, list of reasons
    │   └── Draining               503
    ├── ServiceFailure             exit 4   our side, or the far side, broke
    │   ├── StorageFailure         502      object storage answered with an error
    │   ├── ReplicaFailed          502      a replica of the reasoner broke over a question: it may be sent again
    │   ├── EngineFailed           500      the engine raised (per sample: `engine_failed`)
    │   ├── EngineStalled          503      no progress past its deadline
    │   ├── Unreachable            ---      no answer came from the service (client side)
    │   ├── ContractViolation      ---      a server answered outside the wire contract (client side)
    │   └── IntegrityError         ---      bytes differ from the declared size or hash
    └── Incomplete                 exit 5   resumable: nothing is lost, run again with --resume
        └── Interrupted            exit 130 Ctrl-C, resumable

A failed sample does not fail its batch: its code travels in `samples[]` (see `SampleCode`), never as an HTTP status.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar


class ExitCode:
    """Process exit codes of every command."""

    DONE, INPUT, REFUSED, SERVICE, INCOMPLETE, INTERRUPTED = 0, 2, 3, 4, 5, 130


@dataclass(frozen=True, slots=True)
class FieldError:
    """One thing wrong with one field: `field` is a path such as `samples[2].num_frames`."""

    field: str
    message: str
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        return {"field": self.field, "message": self.message, "remedy": self.remedy}


class Cosmos3Error(Exception):
    """Base of every failure that a user may see.

    Args:
        detail: what went wrong and where, one sentence, safe to show (no token, no absolute server path).
        remedy: how to fix it; falls back to the class remedy.
        errors: per-field findings, for validation failures.
        code: a more specific stable code than the class one.
        retry_after_s: seconds after which the same call may succeed (sent as Retry-After).
    """

    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "Internal error"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = ExitCode.SERVICE
    default_remedy: ClassVar[str] = ""

    def __init__(
        self,
        detail: str,
        *,
        remedy: str | None = None,
        errors: Sequence[FieldError] = (),
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.remedy = self.default_remedy if remedy is None else remedy
        self.errors = tuple(errors)
        self.stable_code = code or self.code
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions cross process borders (Ray pickles them); the default reduction would lose keyword arguments.
        return _rebuild, (type(self), self.detail, self.remedy, self.errors, self.stable_code, self.retry_after_s)

    def as_problem(self) -> dict[str, Any]:
        """The RFC 9457 body of this failure; `detail` stays a string because existing clients read it."""
        problem: dict[str, Any] = {
            "type": "about:blank",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.stable_code,
            "errors": [e.as_dict() for e in self.errors],
        }
        if self.remedy:
            problem["remedy"] = self.remedy
        return problem


def _rebuild(
    cls: type[Cosmos3Error],
    detail: str,
    remedy: str,
    errors: Sequence[FieldError],
    code: str,
    retry_after_s: float | None,
) -> Cosmos3Error:
    return cls(detail, remedy=remedy, errors=errors, code=code, retry_after_s=retry_after_s)


# ---- what the caller sent ------------------------------------------------------------------------------------------


class InputError(Cosmos3Error, ValueError):
    code, title, status, exit_code = "invalid_input", "Invalid input", 422, ExitCode.INPUT


class UsageError(InputError):
    code, title = "usage", "Invalid usage"


class InvalidRequestId(InputError):
    code, title, status = "invalid_request_id", "Invalid request id", 400
    default_remedy = "use 1 to 128 of A-Z a-z 0-9 . _ -, starting with a letter or digit, or leave it empty"


class InvalidRequest(InputError):
    code, title, status = "invalid_request", "Invalid request", 400


class StorageAuthorizationError(InputError):
    code, title, status = "storage_not_authorized", "Storage location not authorized", 400


class ModelNotLoaded(InputError):
    code, title, status = "model_not_loaded", "Model not loaded", 404


class NotFound(InputError):
    code, title, status = "not_found", "Not found", 404


class MethodNotAllowed(InputError):
    code, title, status = "method_not_allowed", "Method not allowed", 405


class RequestTimeout(InputError):
    code, title, status = "request_timeout", "Request body incomplete", 408


class Conflict(InputError):
    code, title, status = "conflict", "Conflict", 409


class LimitExceeded(InputError):
    code, title, status = "limit_exceeded", "Limit exceeded", 413


class UnsupportedMediaType(InputError):
    code, title, status = "unsupported_media_type", "Unsupported media type", 415


class RangeNotSatisfiable(InputError):
    code, title, status = "range_not_satisfiable", "Range not satisfiable", 416


class ValidationFailed(InputError):
    code, title, status = "validation_failed", "Validation failed", 422


class ModeNotSupported(ValidationFailed):
    code, title = "mode_not_supported", "Mode not supported by this engine"


class DeadlineUnreachable(ValidationFailed):
    code, title = "deadline_unreachable", "Cannot finish in time"


# ---- what a check refuses ------------------------------------------------------------------------------------------


class Refusal(Cosmos3Error):
    code, title, status, exit_code = "refused", "Refused", 503, ExitCode.REFUSED


class Unauthorized(Refusal):
    code, title, status = "unauthorized", "Unauthorized", 401
    default_remedy = "send the header `Authorization: Bearer <token>`"


class StartRefused(Refusal):
    code, title = "start_refused", "Start refused"


class GuardrailsUnavailable(StartRefused):
    code, title = "guardrails_unavailable", "Guardrails unavailable"
    default_remedy = "see Guardrails in docs/operations.md; --no-guardrails starts without checks, which is recorded"


class CheckpointUnavailable(StartRefused):
    """Codes: checkpoint_access_denied, _not_found, _offline, _incomplete, _quantized, _altered, _unverified,
    _manifest."""

    code, title = "checkpoint_unavailable", "Checkpoint unavailable"


class QueueFull(Refusal):
    code, title, status = "queue_full", "Queue full", 429


class NotReady(Refusal):
    code, title = "not_ready", "Not ready"


class Draining(Refusal):
    code, title = "draining", "Draining"


# ---- what breaks ---------------------------------------------------------------------------------------------------


class ServiceFailure(Cosmos3Error):
    code, title = "service_failed", "Service failed"


class StorageFailure(ServiceFailure):
    code, title, status = "storage_failed", "Object storage failed", 502
    passing: ClassVar[frozenset[str]] = frozenset({"storage_unavailable", "storage_timeout"})

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later; derived from the code, so it survives a process border."""
        return self.stable_code in self.passing


class ReplicaFailed(ServiceFailure):
    code, title, status = "replica_failed", "Replica failed", 502


class EngineFailed(ServiceFailure):
    code, title = "engine_failed", "Engine failed"


class EngineStalled(ServiceFailure):
    code, title, status = "engine_stalled", "Engine stalled", 503


class Cosmos3RayServeError(ServiceFailure, RuntimeError):
    """The baseline client's error type: anything that keeps a batch from becoming a verified publication."""

    code, title = "ray_serve_failed", "Ray Serve batch failed"


class Unreachable(Cosmos3RayServeError):
    """No answer came. `sent` says whether the request may have been received."""

    code, title = "unreachable", "Service unreachable"

    def __init__(self, detail: str, *, sent: bool = False, remedy: str | None = None) -> None:
        super().__init__(detail, remedy=remedy)
        self.sent = sent


class ContractViolation(Cosmos3RayServeError):
    code, title = "contract_violation", "The server answered outside its contract"


class IntegrityError(Cosmos3RayServeError):
    code, title = "integrity_mismatch", "Bytes differ from what was declared"


# ---- what is left unfinished ---------------------------------------------------------------------------------------


class Incomplete(Cosmos3RayServeError):
    code, title, exit_code = "incomplete", "Incomplete, resumable", ExitCode.INCOMPLETE


class Interrupted(Incomplete):
    code, title, exit_code = "interrupted", "Interrupted, resumable", ExitCode.INTERRUPTED


class SampleCode(StrEnum):
    """Why one sample of an accepted batch has no result (`samples[].code`)."""

    GUARDRAIL_BLOCKED = "guardrail_blocked"
    GUARDRAIL_FAILED = "guardrail_failed"
    ENGINE_FAILED = "engine_failed"
    ENGINE_STALLED = "engine_stalled"
    OUT_OF_MEMORY = "out_of_memory"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    STAGING_FAILED = "staging_failed"
    INPUT_INVALID = "input_invalid"
    OUTPUT_INVALID = "output_invalid"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"

    @property
    def retryable(self) -> bool:
        """Whether the same body may be run again for this sample: the fault was ours or passing, not the request's."""
        return self in _RETRYABLE


# All but the verdicts on the request itself.
_RETRYABLE = frozenset(SampleCode) - {SampleCode.GUARDRAIL_BLOCKED, SampleCode.INPUT_INVALID}


class SampleError(Cosmos3Error):
    """One sample failed; its neighbours and its batch go on. Crosses process borders as `as_record()`."""

    title = "Sample failed"

    def __init__(self, sample_code: SampleCode, detail: str) -> None:
        super().__init__(detail, code=sample_code.value)
        self.sample_code = sample_code

    def __reduce__(self) -> tuple[Any, ...]:
        return SampleError, (self.sample_code, self.detail)

    def as_record(self) -> Mapping[str, Any]:
        return {
            "code": self.sample_code.value,
            "message": self.detail,
            "retryable": self.sample_code.retryable,
        }
