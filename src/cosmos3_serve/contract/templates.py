"""Client-written format strings, made harmless.

`duration_template` and its kin reach `str.format` in the engines. A free format string may read attributes of what it
is given or ask for gigabytes of padding; only plain named fields with a short numeric format pass here.
"""

from __future__ import annotations

import re
from string import Formatter
from typing import Final

from cosmos3_serve.errors import FieldError

DURATION_FIELDS: Final = ("duration", "fps")
RESOLUTION_FIELDS: Final = ("height", "width")

TEMPLATE_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "duration_template": DURATION_FIELDS,
    "inverse_duration_template": DURATION_FIELDS,
    "resolution_template": RESOLUTION_FIELDS,
    "inverse_resolution_template": RESOLUTION_FIELDS,
}

MAX_TEMPLATE_VALUES: Final = 32
_SPEC = re.compile(r"[<>^]?0?[0-9]{0,2}(\.[0-9]{1,2})?[dfg]?")


def template_problem(template: str, allowed: tuple[str, ...]) -> str | None:
    """Why a template may not be formatted, or None when it may."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        return f"is not a format string: {error}"
    values = [(name, spec or "", conversion) for _, name, spec, conversion in parts if name is not None]
    if len(values) > MAX_TEMPLATE_VALUES:
        return f"uses more than {MAX_TEMPLATE_VALUES} values"
    for name, spec, conversion in values:
        if name not in allowed:
            return f"uses a field other than {' and '.join('{' + field + '}' for field in allowed)}"
        if conversion:
            return "uses a conversion"
        if not _SPEC.fullmatch(spec):
            return "uses a format other than width, precision and d, f or g"
    try:
        template.format(duration=1.5, fps=24, height=256, width=320)
    except (ValueError, TypeError) as error:
        return f"cannot be filled in: {error}"
    return None


def template_findings(given: dict[str, object]) -> list[FieldError]:
    """Findings for the template fields among the given ones."""
    found = []
    for field, allowed in TEMPLATE_FIELDS.items():
        template = given.get(field)
        problem = template_problem(template, allowed) if isinstance(template, str) else None
        if problem:
            example = "{duration:.1f}" if allowed is DURATION_FIELDS else "{height}"
            names = " and ".join("{" + name + "}" for name in allowed)
            found.append(FieldError(field, problem, f"use only {names}, such as {example}"))
    return found
