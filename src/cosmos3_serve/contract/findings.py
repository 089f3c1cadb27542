"""Findings: what is wrong with a request, all of it, each with field, message and remedy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from cosmos3_serve.contract.limits import MAX_FINDINGS, MAX_GUESSES, MAX_LABEL_CHARS, MAX_MESSAGE_CHARS
from cosmos3_serve.errors import FieldError

# Remedies by pydantic error type; what the message already says is not said twice.
_REMEDIES = {
    "extra_forbidden": "remove it",
    "int_from_float": "write a whole number",
    "int_parsing": "write a whole number",
    "int_type": "write a whole number",
    "float_type": "write a number",
    "float_parsing": "write a number",
    "finite_number": "write a finite number",
    "bool_type": "write true or false",
    "bool_parsing": "write true or false",
    "string_type": "write a string",
    "dict_type": "write an object",
    "model_type": "write an object; {} is enough to switch a hint on",
    "list_type": "write a list",
    "tuple_type": "write a list of two numbers",
    "missing": "add it",
}


def path_text(path: Iterable[str | int]) -> str:
    """`("samples", 2, "edge", "weight")` as `samples[2].edge.weight`; long foreign keys are cut."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + shorten(part, 64)
    return text


def shorten(text: str, limit: int = MAX_MESSAGE_CHARS) -> str:
    """At most `limit` characters and always encodable, whatever a client sent."""
    clean = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean …?` or "" when nothing comes close."""
    near = get_close_matches(word[:MAX_LABEL_CHARS], list(known), n=1, cutoff=0.7)
    return f"did you mean {near[0]}?" if near else ""


def from_validation(error: ValidationError, known: Sequence[str]) -> list[FieldError]:
    """Pydantic's findings as ours; `known` are the field names for `did you mean`."""
    found: list[FieldError] = []
    guesses = 0
    for item in error.errors(include_url=False, include_input=False):
        kind, loc = item["type"], item["loc"]
        remedy = _REMEDIES.get(kind, "")
        message = item["msg"].removeprefix("Value error, ")
        if kind == "extra_forbidden":
            message = "unknown field"
            guesses += 1
            if len(loc) == 1 and guesses <= MAX_GUESSES:
                remedy = did_you_mean(str(loc[0]), known) or remedy
        elif kind == "enum" or kind == "literal_error":
            remedy = _enum_remedy(item)
        found.append(FieldError(path_text(loc), shorten(message), remedy))
    return found


def _enum_remedy(item: Any) -> str:
    return (
        "write one of them, as a string" if item["loc"][-1] in ("resolution", "aspect_ratio") else "write one of them"
    )


def prefixed(prefix: str, findings: Iterable[FieldError]) -> list[FieldError]:
    """Findings of one sample as findings of the batch: `num_frames` becomes `samples[2].num_frames`."""
    return [
        FieldError(f"{prefix}.{f.field}" if f.field and not f.field.startswith("[") else prefix + f.field,
                   f.message, f.remedy)
        for f in findings
    ]  # fmt: skip


def summary(findings: Sequence[FieldError], what: str) -> str:
    """One sentence for `detail`: the first finding, and how many more there are."""
    first = findings[0]
    text = f"{what}: {first.field}: {first.message}" if first.field else f"{what}: {first.message}"
    return text if len(findings) == 1 else f"{text} (and {len(findings) - 1} more)"


def capped(findings: Sequence[FieldError], *, unexamined: int = 0) -> list[FieldError]:
    """At most `MAX_FINDINGS` findings; the last then says what was left out.

    Args:
        unexamined: samples that were not looked at any more, so that a hostile body costs little.
    """
    if len(findings) <= MAX_FINDINGS and not unexamined:
        return list(findings)
    kept = list(findings[: MAX_FINDINGS - 1])
    rest = len(findings) - len(kept)
    said = f"{rest} more findings are not listed" if rest else "the list ends here"
    if unexamined:
        said += f" and {unexamined} samples were not examined"
    return [*kept, FieldError("samples", said, "mend these first")]
