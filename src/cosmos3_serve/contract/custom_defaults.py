"""Custom defaults: what an operator puts in place of the framework's own defaults, mode by mode, and what follows.

The client binds a response to defaults that it knows by the framework revision. A service with other ones announces it
in `/ready` (`custom_defaults`), and then the client insists on the two fields that decide what kind of media a sample
is: `model_mode` and `num_frames` (source: seed, Submit a durable batch).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from cosmos3_serve.contract.jsontext import canonical_json
from cosmos3_serve.contract.modes import ModelMode
from cosmos3_serve.contract.sample import SampleOverrides
from cosmos3_serve.errors import FieldError, UsageError, ValidationFailed

Defaults = dict[ModelMode, dict[str, Any]]

# Fields of one sample's quality and size. What decides where a sample reads, or which checks see it, is no default.
CUSTOMIZABLE: Final = frozenset(
    {
        *("num_steps", "guidance", "guidance_interval", "normalize_cfg", "shift"),
        *("resolution", "aspect_ratio", "fps", "num_frames", "negative_prompt"),
        *("video_save_quality", "image_save_quality"),
    }
)
EXPLICIT: Final = ("model_mode", "num_frames")
EXPLICIT_CODE: Final = "explicit_fields_required"


def parse_custom_defaults(obj: object) -> Defaults:
    """`{mode: {field: value}}`, checked as a sample's own fields would be.

    Raises:
        UsageError: code `invalid_defaults`; `errors` are all findings, as `mode.field`.
    """
    if not isinstance(obj, dict) or not obj:
        raise _invalid([FieldError("", "is no JSON object with a mode as its key", "write {mode: {field: value}}")])
    findings: list[FieldError] = []
    found: Defaults = {}
    for name, fields in obj.items():
        if name not in list(ModelMode):
            findings.append(FieldError(str(name)[:64], "is no mode", f"use one of {', '.join(ModelMode)}"))
        elif not isinstance(fields, dict) or not fields:
            findings.append(FieldError(name, "is no JSON object with a field as its key", "write {field: value}"))
        else:
            found[ModelMode(name)] = _fields(name, fields, findings)
    if findings:
        raise _invalid(findings)
    return found


def _fields(mode: str, fields: Mapping[str, Any], findings: list[FieldError]) -> dict[str, Any]:
    for name in fields:
        if name not in CUSTOMIZABLE:
            remedy = f"use one of {', '.join(sorted(CUSTOMIZABLE))}"
            findings.append(FieldError(f"{mode}.{str(name)[:64]}", "can have no default of yours", remedy))
    known = {name: value for name, value in fields.items() if name in CUSTOMIZABLE and value is not None}
    try:
        return SampleOverrides.model_validate(known).given()
    except ValidationError as error:
        for problem in error.errors():
            field = ".".join(str(part) for part in (mode, *problem["loc"]))
            findings.append(FieldError(field, problem["msg"], "write it as in a sample"))
        return {}


def _invalid(findings: list[FieldError]) -> UsageError:
    first = findings[0]
    return UsageError(
        f"invalid defaults file: {first.field} {first.message}".replace("  ", " "),
        remedy=first.remedy,
        errors=findings,
        code="invalid_defaults",
    )


def defaults_sha256(defaults: Mapping[ModelMode, Mapping[str, Any]]) -> str | None:
    """SHA-256 of their canonical JSON, so that two services can be compared; None without any."""
    if not defaults:
        return None
    return hashlib.sha256(canonical_json({str(k): dict(v) for k, v in defaults.items()})).hexdigest()


def require_explicit(samples: Sequence[Mapping[str, Any]]) -> None:
    """For a service with custom defaults: every sample says its mode and its frame count itself.

    Raises:
        ValidationFailed: code `explicit_fields_required`, every missing field as `samples[i].field`.
    """
    findings = [
        FieldError(f"samples[{index}].{field}", "is missing, and this service has defaults of its own", "write it")
        for index, sample in enumerate(samples)
        for field in EXPLICIT
        if sample.get(field) is None
    ]
    if findings:
        raise ValidationFailed(
            f"the service announces custom defaults, so that every sample must name {' and '.join(EXPLICIT)}",
            remedy="write both fields in every sample; nothing was sent",
            errors=findings[:100],
            code=EXPLICIT_CODE,
        )
