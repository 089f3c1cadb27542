"""`parse_batch`: from a decoded JSON body to a `BatchRequest`, or one error that names everything wrong.

The rules are those of docs/contract.md 2.3 and 6. Pure and quick for ordinary bodies, but a full-size one takes a good
part of a second: call it off the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from cosmos3_serve.contract import limits
from cosmos3_serve.contract.batch import BatchRequest
from cosmos3_serve.contract.findings import capped, from_validation, path_text, prefixed, summary
from cosmos3_serve.contract.inputs import scan_inputs, server_owned_findings
from cosmos3_serve.contract.jsontext import JsonProblem, check_json
from cosmos3_serve.contract.profile import EngineProfile
from cosmos3_serve.contract.resolve import batch_failure, resolve_sample
from cosmos3_serve.contract.rules import SAFE_NAME_REMEDY, static_findings
from cosmos3_serve.contract.sample import FIELD_NAMES, SampleOverrides
from cosmos3_serve.contract.wire import MODEL_NAME, is_safe_name
from cosmos3_serve.errors import (
    FieldError,
    InputError,
    InvalidRequestId,
    LimitExceeded,
    StorageAuthorizationError,
    ValidationFailed,
)

CheckUri = Callable[[str], object]


@dataclass(slots=True)
class _Found:
    """Findings by kind; the first kind that has any decides which error is raised."""

    structure: list[FieldError] = field(default_factory=list)
    storage: list[FieldError] = field(default_factory=list)
    fields: list[FieldError] = field(default_factory=list)
    failures: list[ValidationFailed] = field(default_factory=list)
    unexamined: int = 0

    @property
    def everything(self) -> list[FieldError]:
        return [*self.structure, *self.storage, *self.fields]

    @property
    def full(self) -> bool:
        return len(self.structure) + len(self.storage) + len(self.fields) >= limits.MAX_FINDINGS

    def listed(self, *first: FieldError) -> list[FieldError]:
        return capped([*first, *self.everything], unexamined=self.unexamined)


def parse_batch(
    obj: object,
    *,
    max_samples: int,
    profile: EngineProfile | None = None,
    check_uri: CheckUri | None = None,
    uploads: Collection[str] = (),
) -> BatchRequest:
    """Validate a batch completely. Unknown top-level keys are dropped, as in the baseline.

    Args:
        obj: decoded JSON body.
        max_samples: most samples in one batch.
        profile: also resolve every sample for this engine, so that nothing is left to refuse later.
        check_uri: called with every input URI; raises an InputError whose detail says why it may not be read.
        uploads: names of the files that came with the request.

    Raises:
        LimitExceeded: more than `max_samples` samples.
        InvalidRequestId: `request_id` is neither empty nor a safe name.
        StorageAuthorizationError: an input is refused (detail: the text that existing servers send).
        ModeNotSupported: every failing sample asks for a mode that the engine does not serve.
        ValidationFailed: anything else. `errors` lists all findings of every kind in each case.
    """
    if not isinstance(obj, dict):
        raise ValidationFailed("body should be a JSON object", remedy='send {"samples": [{"name": …}]}')
    found = _Found()
    model = _text(obj, "model", MODEL_NAME, found)
    request_id = _text(obj, "request_id", "", found)
    samples = obj.get("samples")
    if not isinstance(samples, list) or not samples:
        found.structure.append(FieldError("samples", "should be a list of at least one sample", 'add {"name": …}'))
        samples = []
    if len(samples) > max_samples:
        raise LimitExceeded(
            f"{len(samples)} samples; one batch takes at most {max_samples}", remedy="split the batch"
        )  # fmt: skip
    names: dict[str, int] = {}
    parsed = []
    for index, sample in enumerate(samples):
        if found.full:
            found.unexamined = len(samples) - index
            break
        parsed.append(_sample(index, sample, model, names, found, profile, check_uri, uploads))
    if request_id and not is_safe_name(request_id):
        bad = FieldError("request_id", "is not a safe name", SAFE_NAME_REMEDY + ", or leave it empty")
        raise InvalidRequestId("invalid request id", errors=found.listed(bad))
    _raise(found)
    return BatchRequest(samples=parsed, model=model, request_id=request_id)


def _raise(found: _Found) -> None:
    everything = found.listed()
    if found.structure:
        first = found.structure[0]
        raise ValidationFailed(summary(everything, "invalid batch"), remedy=first.remedy, errors=everything)
    if found.storage:
        first = found.storage[0]
        raise StorageAuthorizationError(first.message, remedy=first.remedy, errors=everything)
    if found.fields:
        raise batch_failure(everything, found.failures)


def _text(obj: dict[str, Any], key: str, default: str, found: _Found) -> str:
    value = obj.get(key, default)
    if isinstance(value, str):
        return value
    found.structure.append(FieldError(key, "should be a string", "write a string, or leave it out"))
    return default


def _sample(
    index: int,
    sample: object,
    model: str,
    names: dict[str, int],
    found: _Found,
    profile: EngineProfile | None,
    check_uri: CheckUri | None,
    uploads: Collection[str],
) -> dict[str, Any]:
    where = f"samples[{index}]"
    if not isinstance(sample, dict):
        found.structure.append(FieldError(where, "should be an object", 'write {"name": …}'))
        return {}
    try:
        check_json(sample, max_depth=limits.MAX_SAMPLE_DEPTH, max_nodes=limits.MAX_SAMPLE_NODES)
    except JsonProblem as problem:
        found.structure.append(FieldError(path_text(("samples", index, *problem.path)), problem.message, "simplify it"))
        return {}
    name, bad_name = _name(sample.get("name"), names, index)
    if bad_name:
        found.structure += prefixed(where, [bad_name])
    sample = {**sample, "name": name}
    storage = _storage_findings(sample, check_uri, uploads)
    found.storage += prefixed(where, storage)
    told = {item.field for item in storage} | ({"name"} if bad_name else set())
    failure = _field_failure(sample, model, profile)
    if failure is not None:
        new = [item for item in failure.errors if item.field not in told]
        found.fields += prefixed(where, new)
        if new:
            found.failures.append(failure)
    return sample


def _name(value: object, names: dict[str, int], index: int) -> tuple[str, FieldError | None]:
    """The stripped name and what is wrong with it; a number is its own text, as in the baseline."""
    if value is None:
        return "", FieldError("name", "is missing", "give each sample a name of its own")
    name = str(value).strip() if isinstance(value, str | int | float) else ""
    if not is_safe_name(name):
        return name, FieldError("name", "is not a safe name", SAFE_NAME_REMEDY)
    first = names.setdefault(name, index)
    if first != index:
        return name, FieldError("name", f"is also the name of samples[{first}]", "give each sample a name of its own")
    return name, None


def _storage_findings(sample: dict[str, Any], check_uri: CheckUri | None, uploads: Collection[str]) -> list[FieldError]:
    findings = server_owned_findings(sample)
    inputs, refused = scan_inputs(sample, uploads)
    findings += refused
    for item in (item for item in inputs if item.upload is None) if check_uri else ():
        try:
            check_uri(item.uri)  # type: ignore[misc]
        except InputError as error:
            findings.append(FieldError(item.field, error.detail, error.remedy))
    return findings


def _field_failure(sample: dict[str, Any], model: str, profile: EngineProfile | None) -> ValidationFailed | None:
    """What is wrong with the 74 fields, and with their meaning on this engine."""
    try:
        overrides = SampleOverrides.model_validate(sample)
    except ValidationError as error:
        return ValidationFailed("invalid sample", errors=from_validation(error, FIELD_NAMES))
    extra: list[FieldError] = []
    if overrides.model and overrides.model != model:
        extra.append(FieldError("model", "differs from the model of the batch", "leave it out"))
    if profile is None:
        extra += static_findings(overrides)
        return ValidationFailed("invalid sample", errors=extra) if extra else None
    try:
        resolve_sample(overrides, profile, seed=0)
    except ValidationFailed as failure:
        failure.errors = (*extra, *failure.errors)
        return failure
    return ValidationFailed("invalid sample", errors=extra) if extra else None
