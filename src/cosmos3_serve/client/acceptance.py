"""Acceptance of a response before any byte of it is downloaded: is it complete, partial, or nothing to publish?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cosmos3_serve.contract.batch import BatchRequest, BatchResponse
from cosmos3_serve.contract.binding import PartialBinding, Verdict, bind_partial
from cosmos3_serve.contract.jsontext import decode_json
from cosmos3_serve.contract.records import Artifact
from cosmos3_serve.errors import ContractViolation, Cosmos3RayServeError, FieldError, Incomplete, InputError

BROKEN = "contract_violation"
SAMPLES_FAILED = "samples_failed"


@dataclass(frozen=True, slots=True)
class Accepted:
    """What may be published.

    Attributes:
        artifacts: files of the complete samples.
        missing: samples without a result, empty unless partial.
        args: resolved args of each complete sample.
    """

    response: BatchResponse
    artifacts: tuple[Artifact, ...]
    missing: tuple[Verdict, ...]
    args: dict[str, dict[str, Any]]

    @property
    def status(self) -> str:
        return "partial" if self.missing else "completed"


def accept(request: BatchRequest, data: bytes, *, expected_revision: str, allow_partial: bool) -> Accepted:
    """Apply every rule of docs/contract.md 4.2 to the received bytes.

    Raises:
        ContractViolation: the answer breaks the contract.
        Cosmos3RayServeError: code `samples_failed`: some samples failed for good; `errors` lists each.
        Incomplete: code `samples_failed`: as before, but at least one may be run again.
    """
    try:
        obj = decode_json(data)
    except InputError as error:
        raise ContractViolation(f"the service did not answer with JSON: {error.detail}") from None
    bound = bind_partial(request, obj, expected_revision=expected_revision)
    broken = [verdict for verdict in bound.missing if verdict.code == BROKEN]
    if broken and not allow_partial:
        errors = _listed(request, bound)
        more = f" (and {len(broken) - 1} more samples)" if len(broken) > 1 else ""
        raise ContractViolation(f"sample {broken[0].name!r}: {broken[0].message}{more}", errors=errors)
    if bound.missing and (not allow_partial or not bound.complete):
        raise _failed(request, bound)
    args = {result["args"]["name"]: result["args"] for result in bound.response.outputs}
    return Accepted(bound.response, bound.artifacts, bound.missing, {name: args[name] for name in bound.complete})


def retryable(request: BatchRequest, data: bytes, *, expected_revision: str) -> list[str]:
    """Names of the samples without a result that the service would run again; none of an answer that is unusable."""
    try:
        bound = bind_partial(request, decode_json(data), expected_revision=expected_revision)
    except (InputError, ContractViolation):
        return []
    missing = {verdict.name for verdict in bound.missing}
    return [record.name for record in bound.response.samples if record.retryable and record.name in missing]


def _failed(request: BatchRequest, bound: PartialBinding) -> Cosmos3RayServeError:
    names = [verdict.name for verdict in bound.missing]
    shown = ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    detail = f"{len(names)} of {len(request.samples)} samples have no result ({shown}); nothing was published"
    retryable = any(record.retryable for record in bound.response.samples if record.name in names)
    partial = "publish the others with --resume --allow-partial" if bound.complete else ""
    kind = Incomplete if retryable else Cosmos3RayServeError
    remedy = "; ".join(filter(None, ["mend the samples that failed and submit them as a new batch", partial]))
    return kind(detail, remedy=partial if retryable else remedy, errors=_listed(request, bound), code=SAMPLES_FAILED)


def _listed(request: BatchRequest, bound: PartialBinding) -> list[FieldError]:
    place = {name: f"samples[{index}]" for index, name in enumerate(request.names)}
    retryable = {record.name for record in bound.response.samples if record.retryable}
    return [
        FieldError(
            place[verdict.name],
            f"{verdict.name}: {verdict.code}: {verdict.message}",
            "it is run again by --resume" if verdict.name in retryable else "",
        )
        for verdict in bound.missing
    ]
