"""What the client does with a batch before it posts anything (docs/contract.md 3).

Stricter than the server where the baseline's client is: names as they are, numbers as numbers. What the baseline let
through to an opaque failure is refused here too: unknown modes and keys, video2image, local and http paths.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from cosmos3_serve.contract.batch import BatchRequest
from cosmos3_serve.contract.findings import capped, path_text, summary
from cosmos3_serve.contract.inputs import NEEDS_S3, NOT_ONE_OBJECT
from cosmos3_serve.contract.parse import CheckUri, parse_batch
from cosmos3_serve.contract.rules import SAFE_NAME_REMEDY
from cosmos3_serve.contract.wire import MODEL_NAME, is_safe_name
from cosmos3_serve.errors import FieldError, InputError, InvalidRequestId, LimitExceeded, ValidationFailed

CLIENT_MAX_SAMPLES = 100_000  # only so that a wrong file is noticed; the server's own limit decides

_INT: TypeAdapter[int] = TypeAdapter(int)
_POSITIVE: TypeAdapter[int] = TypeAdapter(Annotated[int, Field(gt=0)])
_NUMERIC = {"seed": _INT, "num_frames": _POSITIVE, "num_outputs": _POSITIVE}


def prepare_request(obj: object, *, model: str = MODEL_NAME, check_uri: CheckUri | None = None) -> BatchRequest:
    """The batch as it will be posted. Nothing is rewritten but given seeds, frame counts and output counts.

    Args:
        obj: decoded JSON of the input file; a list is short for `{"samples": list}`.
        model: the only model that the batch may name.
        check_uri: called with each input URI; raises an InputError whose detail says why it cannot be read.

    Raises:
        InvalidRequestId, LimitExceeded: as `parse_batch`.
        ValidationFailed: anything else; detail `invalid Cosmos3 Ray batch: …`, `errors` all findings.
    """
    if isinstance(obj, list):
        obj = {"samples": obj}
    findings: list[FieldError] = []
    prepared: object = obj
    if isinstance(obj, dict):
        named = obj.get("model", MODEL_NAME)
        if isinstance(named, str) and named != model:
            findings.append(FieldError("model", f"is not {model}", f"write {model}, or leave it out"))
        samples = obj.get("samples")
        if isinstance(samples, list):
            coerced = [_coerced(index, sample, findings) for index, sample in enumerate(samples)]
            prepared = {**obj, "samples": coerced}
    try:
        request = parse_batch(prepared, max_samples=CLIENT_MAX_SAMPLES, check_uri=_client_text(check_uri))
    except (InvalidRequestId, LimitExceeded):
        raise
    except InputError as error:
        told = {finding.field for finding in findings}
        others = error.errors or (FieldError("", error.detail, error.remedy),)
        findings += [finding for finding in others if finding.field not in told]
    if findings:
        raise ValidationFailed(
            summary(findings, "invalid Cosmos3 Ray batch"), remedy=findings[0].remedy, errors=capped(findings)
        )
    return request


def _coerced(index: int, sample: object, findings: list[FieldError]) -> object:
    if not isinstance(sample, dict):
        return sample
    changed: dict[str, Any] = dict(sample)
    name = sample.get("name")
    if name is not None and not (isinstance(name, str) and is_safe_name(name)):
        findings.append(FieldError(f"samples[{index}].name", "is not a safe name, as written", SAFE_NAME_REMEDY))
    for field, adapter in _NUMERIC.items():
        if sample.get(field) is None:
            continue
        try:
            changed[field] = adapter.validate_python(sample[field])
        except ValidationError:
            kind = "a whole number" if field == "seed" else "a positive whole number"
            path = path_text(("samples", index, field))
            findings.append(FieldError(path, "invalid numeric Cosmos3 sample overrides", f"write {kind}"))
    return changed


def _client_text(check_uri: CheckUri | None) -> CheckUri | None:
    """The storage's refusal under the name that the baseline's client gives it."""
    if check_uri is None:
        return None

    def check(uri: str) -> None:
        try:
            check_uri(uri)
        except InputError as error:
            known = error.detail in (NEEDS_S3, NOT_ONE_OBJECT)
            detail = error.detail if known else f"invalid conditioning S3 URI: {error.detail}"
            raise type(error)(detail, remedy=error.remedy) from None

    return check
