"""Binding a response to its request: every rule of docs/contract.md 4.2, in that order, before any byte is downloaded.

Types are strict: `True` is no seed 1 and `1.0` is no frame count. Keys that we do not know are dropped from the model;
whoever publishes keeps the bytes as received.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from cosmos3_serve.contract.batch import BatchRequest, BatchResponse
from cosmos3_serve.contract.findings import from_validation, shorten, summary
from cosmos3_serve.contract.media import Requested, active_hints, requested
from cosmos3_serve.contract.modes import ModelMode
from cosmos3_serve.contract.records import Artifact, SampleRecord, SampleState
from cosmos3_serve.contract.wire import (
    BATCH_SCHEMA,
    FRAMEWORK_REVISION,
    REASONER_TEXT,
    artifact_problem,
    control_file,
    vision_file,
)
from cosmos3_serve.errors import ContractViolation

_MODES = frozenset(mode.value for mode in ModelMode)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether one sample's result is complete; `code` and `message` say why not, `rule` which rule it breaks."""

    name: str
    complete: bool
    code: str = ""
    message: str = ""
    rule: str = ""


@dataclass(frozen=True, slots=True)
class PartialBinding:
    """A response of which some samples may be missing. `artifacts` are those of the complete ones only."""

    response: BatchResponse
    verdicts: tuple[Verdict, ...]
    artifacts: tuple[Artifact, ...]

    @property
    def complete(self) -> tuple[str, ...]:
        return tuple(verdict.name for verdict in self.verdicts if verdict.complete)

    @property
    def missing(self) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self.verdicts if not verdict.complete)


class Mismatch(Exception):
    """One sample's result breaks a rule: `status`, `mode`, `seed`, `frames`, `hints`, `files`, `paths` or `primary`."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.code = "sample_failed" if rule == "status" else "contract_violation"
        self.rule, self.message = rule, message


def bind_response(
    request: BatchRequest, response_obj: object, *, expected_revision: str = FRAMEWORK_REVISION
) -> BatchResponse:
    """The response, proven to answer this request completely.

    Args:
        request: as posted, from `prepare_request`, with its `request_id`.
        response_obj: decoded JSON of the answer.

    Raises:
        ContractViolation: a rule is broken, or a sample did not succeed; code `sample_failed` in the latter case.
    """
    bound = bind_partial(request, response_obj, expected_revision=expected_revision)
    if bound.missing:
        first = bound.missing[0]
        failed = all(verdict.code != "contract_violation" for verdict in bound.missing)
        code = "sample_failed" if failed else "contract_violation"
        more = f" (and {len(bound.missing) - 1} more samples)" if len(bound.missing) > 1 else ""
        raise ContractViolation(f"sample {first.name!r}: {first.message}{more}", code=code)
    return bound.response


def bind_partial(
    request: BatchRequest, response_obj: object, *, expected_revision: str = FRAMEWORK_REVISION
) -> PartialBinding:
    """As `bind_response`, but a sample without a complete result gets a verdict instead of failing the whole.

    What concerns the batch as such still fails it: envelope, names, unsafe artifact paths, foreign artifacts, and
    `samples[]` that contradict the results.

    Raises:
        ContractViolation: see above.
    """
    response = _envelope(request, response_obj, expected_revision)
    asked = {item.name: item for item in map(requested, request.samples)}
    results = _by_name(response, asked)
    declared: dict[str, str] = {}
    verdicts: dict[str, Verdict] = {}
    for name, result in results.items():
        try:
            files = result_files(result, asked[name], response.request_id)
        except Mismatch as mismatch:
            verdicts[name] = Verdict(name, False, mismatch.code, mismatch.message, mismatch.rule)
        else:
            declared |= dict.fromkeys(files, name)
            verdicts[name] = Verdict(name, True)
    _bind_records(response.samples, results, verdicts)
    artifacts = _bind_artifacts(response, declared, verdicts)
    return PartialBinding(response, tuple(verdicts[name] for name in request.names), artifacts)


def _envelope(request: BatchRequest, obj: object, expected_revision: str) -> BatchResponse:
    if not isinstance(obj, dict):
        raise ContractViolation("response is not a JSON object")
    if obj.get("schema_version") != BATCH_SCHEMA:
        raise ContractViolation(f"schema_version is not {BATCH_SCHEMA}")
    try:
        response = BatchResponse.model_validate(obj)
    except ValidationError as error:
        found = from_validation(error, ())
        raise ContractViolation(summary(found, "invalid response"), errors=found[:20]) from None
    _must_equal("model", response.model, request.model)
    _must_equal("request_id", response.request_id, request.request_id)
    if response.framework_revision != expected_revision:
        raise ContractViolation(
            f"framework_revision is {shorten(response.framework_revision, 80)!r}, expected {expected_revision!r}",
            remedy="a revision is accepted once its contract was reviewed; then pass it as --expected-revision",
            code="revision_mismatch",
        )
    _must_equal("batch_size", response.batch_size, len(request.samples))
    _must_equal("number of outputs", len(response.outputs), len(request.samples))
    return response


def _must_equal(what: str, got: object, wanted: object) -> None:
    if got != wanted:
        raise ContractViolation(f"{what} is {shorten(repr(got), 160)}, expected {wanted!r}")


def _by_name(response: BatchResponse, asked: Mapping[str, Requested]) -> dict[str, dict[str, Any]]:
    results: dict[str, dict[str, Any]] = {}
    for result in response.outputs:
        args = result.get("args")
        name = args.get("name") if isinstance(args, dict) else None
        if not isinstance(name, str) or name not in asked:
            raise ContractViolation("a result names no requested sample")
        if name in results:
            raise ContractViolation(f"sample {name!r} has more than one result")
        results[name] = result
    return results


def result_files(result: Mapping[str, Any], asked: Requested, request_id: str) -> list[str]:
    """The files that a complete result declares; `args` must be an object.

    Raises:
        Mismatch: the result is not that of the sample that was asked for.
    """
    args = result["args"]
    status = result.get("status")
    if status != "success":
        message = result.get("message")
        said = f": {shorten(message, 200)}" if isinstance(message, str) and message else ""
        raise Mismatch("status", f"status is {shorten(str(status), 40)}{said}")
    mode, frames = args.get("model_mode"), args.get("num_frames")
    if not _same(mode, asked.mode):
        raise _broken("mode", f"model_mode is {mode!r}, expected {asked.mode!r}")
    if asked.seed is not None and not _same(args.get("seed"), asked.seed):
        raise _broken("seed", f"seed is {args.get('seed')!r}, expected {asked.seed!r}")
    if mode not in _MODES:
        raise _broken("mode", f"model_mode {mode!r} is unknown")
    if type(frames) is not int or frames < 1:
        raise _broken("frames", "num_frames is not a whole number of at least 1")
    if active_hints(args) != asked.hints:
        raise _broken("hints", "the active transfer hints differ from the requested ones")
    if not asked.is_text and asked.is_image != (frames == 1):
        kind = "image" if asked.is_image else "animated clip"
        raise _broken("frames", f"num_frames is {frames}, but an {kind} was requested")
    files = _declared(result.get("outputs"), request_id, asked.name)
    primary = [REASONER_TEXT if asked.is_text else vision_file(frames)]
    for file in (*primary, *(control_file(hint, frames) for hint in sorted(asked.hints))):
        if f"{request_id}/{asked.name}/{file}" not in files:
            raise _broken("primary", f"{file} is not among its files")
    return files


def _declared(outputs: object, request_id: str, name: str) -> list[str]:
    if not isinstance(outputs, list) or not outputs:
        raise _broken("files", "outputs is not a non-empty list")
    files: list[str] = []
    for output in outputs:
        listed = output.get("files") if isinstance(output, dict) else None
        if not isinstance(output, dict) or not isinstance(output.get("content"), dict):
            raise _broken("files", "an output has no object content")
        if not isinstance(listed, list) or not listed:
            raise _broken("files", "an output lists no files")
        for path in listed:
            problem = artifact_problem(path, request_id, name) if isinstance(path, str) else "is not text"
            if problem:
                raise _broken("paths", f"file path {problem}")
            if path in files:
                raise _broken("files", "a file is declared twice")
            files.append(path)
    return files


def _bind_records(
    records: list[SampleRecord], results: Mapping[str, Mapping[str, Any]], verdicts: dict[str, Verdict]
) -> None:
    """Check our additive `samples[]` against the results, where a server sends it."""
    if not records:
        return
    names = [record.name for record in records]
    if len(set(names)) != len(names) or set(names) != set(results):
        raise ContractViolation("samples[] does not name each requested sample once")
    for record in records:
        succeeded = results[record.name].get("status") == "success"
        if not record.state.ended or (record.state is SampleState.SUCCEEDED) != succeeded:
            raise ContractViolation(f"samples[] says {record.state} of {record.name!r}, its result says otherwise")
        verdict = verdicts[record.name]
        if verdict.code == "sample_failed" and record.code:
            message = shorten(record.message, 200) if record.message else verdict.message
            verdicts[record.name] = Verdict(record.name, False, shorten(record.code, 64), message, "status")


def _bind_artifacts(
    response: BatchResponse, declared: Mapping[str, str], verdicts: dict[str, Verdict]
) -> tuple[Artifact, ...]:
    """Exactly the declared files of the complete samples, each once; others' files may be listed but are not taken."""
    listed: dict[str, Artifact] = {}
    for artifact in response.artifacts:
        problem = artifact_problem(artifact.path, response.request_id, artifact.sample)
        if artifact.sample not in verdicts:
            problem = "belongs to no requested sample"
        if problem:
            raise ContractViolation(f"an artifact path {problem}")
        if artifact.path in listed:
            raise ContractViolation("an artifact is listed twice")
        listed[artifact.path] = artifact
    wanted, got = _by_owner(declared), _by_owner({path: artifact.sample for path, artifact in listed.items()})
    for name, verdict in list(verdicts.items()):
        if verdict.complete and wanted.get(name) != got.get(name):
            message = "artifacts differ from its declared files"
            verdicts[name] = Verdict(name, False, "contract_violation", message, "files")
    return tuple(artifact for artifact in response.artifacts if verdicts[artifact.sample].complete)


def _by_owner(owners: Mapping[str, str]) -> dict[str, set[str]]:
    """Sample to its paths, in one pass: a batch may hold thousands of samples."""
    paths: dict[str, set[str]] = {}
    for path, owner in owners.items():
        paths.setdefault(owner, set()).add(path)
    return paths


def _same(got: object, wanted: object) -> bool:
    return type(got) is type(wanted) and got == wanted


def _broken(rule: str, message: str) -> Mismatch:
    return Mismatch(rule, shorten(message))
