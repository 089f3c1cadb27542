"""Values: what an operator may set on a deployment, from defaults, a values file and `--set`, in that order.

A key is a path such as `images.worker`. Every model says what its fields mean, so that the catalogue (`deploy values`,
and the error for an unknown key) comes from the code.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cosmos3_serve.errors import FieldError, UsageError

# Kubernetes refuses an upper-case image or class name, so a manifest that is applied with one fails where one looks.
PLACEHOLDER = "REPLACE-WITH"
SHOWN = 12


def value(default: Any, help: str, **bounds: Any) -> Any:
    """One key with its default and its meaning."""
    return Field(default, description=help, **bounds)


def words(given: Any) -> Any:
    """A comma list, as a flag carries it."""
    return tuple(w.strip() for w in given.split(",") if w.strip()) if isinstance(given, str) else given


class Values(BaseModel):
    """Base of every group of keys: frozen, no unknown keys, defaults checked like what is given."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    @classmethod
    def load(cls, file: Mapping[str, Any] | None = None, sets: Sequence[str] = ()) -> Self:
        """Merge `--set` over the file over the defaults.

        Args:
            file: nested mappings, as read from YAML.
            sets: `key=value`, the last one of a key wins.

        Raises:
            UsageError: codes `deploy_set_malformed`, `deploy_unknown_key`, `deploy_bad_value`, with the keys.
        """
        merged: dict[str, Any] = {}
        unknown: list[FieldError] = []
        for path, given in _leaves(cls, dict(file or {}), ()):
            unknown += _put(cls, merged, path, given)
        for text in sets:
            key, equals, given = text.partition("=")
            if not equals or not key.strip():
                raise UsageError(
                    f"--set {text!r} is not key=value",
                    code="deploy_set_malformed",
                    remedy="write --set key=value",
                )
            unknown += _put(cls, merged, tuple(key.strip().split(".")), given)
        if unknown:
            raise UsageError(
                f"no such value: {', '.join(e.field for e in unknown)}",
                code="deploy_unknown_key",
                remedy="the keys are listed by the same command with --values-help",
                errors=unknown,
            )
        try:
            return cls.model_validate(merged)
        except ValidationError as error:
            raise bad_value(error) from None


def bad_value(error: ValidationError) -> UsageError:
    found = [
        FieldError(
            ".".join(str(p) for p in e["loc"] if p != "[key]") or "values", e["msg"].removeprefix("Value error, ")
        )
        for e in error.errors()
    ]
    return UsageError(
        "a value does not fit: " + "; ".join(f"{e.field}: {e.message}" for e in found[:3]),
        code="deploy_bad_value",
        remedy="the keys are listed by the same command with --values-help",
        errors=found,
    )


def catalogue(model: type[Values], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Every key with its default and its meaning, in the order of the models."""
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        inner = _group(field.annotation)
        if inner is not None:
            yield from catalogue(inner, f"{key}.")
            continue
        default = field.get_default(call_default_factory=True)
        if _open(field.annotation):
            key, default = f"{key}.NAME", ""
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else "" if default is None else str(default)
        yield key, shown.lower() if isinstance(default, bool) else shown, str(field.description or "")


def _put(model: type[Values], merged: dict[str, Any], path: tuple[str, ...], given: Any) -> list[FieldError]:
    """Set one key; what is wrong with the key, if anything."""
    here: type[Values] = model
    into = merged
    for place, part in enumerate(path):
        name = part.replace("-", "_")
        field = here.model_fields.get(name)
        if field is None:
            return [_unknown(model, path)]
        rest = path[place + 1 :]
        if _open(field.annotation):
            if not rest:
                if isinstance(given, Mapping):
                    into.setdefault(name, {}).update(given)
                    return []
                return [FieldError(".".join(path), "is a group of names", f"give {'.'.join(path)}.NAME=value")]
            # A label has dots of its own: what is left is one name.
            into.setdefault(name, {})[".".join(rest)] = given
            return []
        inner = _group(field.annotation)
        if inner is None:
            if rest:
                return [_unknown(model, path)]
            into[name] = given
            return []
        if not rest:
            return [FieldError(".".join(path), "is a group of keys", f"give one of its keys, {'.'.join(path)}.…=value")]
        here, into = inner, into.setdefault(name, {})
    return [_unknown(model, path)]


def _leaves(
    model: type[Values] | None, given: Mapping[str, Any], at: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, item in given.items():
        field = model.model_fields.get(str(key).replace("-", "_")) if model else None
        inner = _group(field.annotation) if field else None
        if isinstance(item, Mapping) and not (field and _open(field.annotation)):
            yield from _leaves(inner, item, (*at, str(key)))
        else:
            yield (*at, str(key)), item


def _unknown(model: type[Values], path: tuple[str, ...]) -> FieldError:
    key = ".".join(path)
    known = [name for name, _, _ in catalogue(model)]
    close = difflib.get_close_matches(key, known, n=3, cutoff=0.5)
    near = close or [name for name in known if name.split(".")[0] == path[0]] or known
    return FieldError(key, "is no value of this target", f"there is {', '.join(near[:SHOWN])}")


def _group(annotation: Any) -> type[Values] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, Values) else None


def _open(annotation: Any) -> bool:
    """Whether a field takes names of the operator's own (variables, labels)."""
    if get_origin(annotation) in (Union, types.UnionType):
        return any(_open(arg) for arg in get_args(annotation))
    return get_origin(annotation) in (Mapping, dict) or annotation in (Mapping, dict)
