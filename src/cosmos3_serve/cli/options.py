"""Typer options generated from a settings model: the model stays the single source of flags, defaults and help.

A command takes one parameter named `flags`; `settings_options(Model)` replaces it by one option per field. An option
that was not given arrives as None, so that `Model.load(flags)` lets the environment, then the default, decide.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import ByteSize
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from cosmos3_serve.settings import Settings

SIMPLE = (bool, int, float, str, Path)


def settings_options(model: type[Settings]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: give a command the options of `model` in place of its parameter `flags` (a dict, field -> value)."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(command, eval_str=True)
        options = [_option(model, name, field) for name, field in model.model_fields.items()]

        def wrapper(**given: Any) -> Any:
            # A repeatable option that was not given is an empty list.
            flags = {name: None if (value := given.pop(name)) == [] else value for name in model.model_fields}
            return command(flags=flags, **given)

        rest = [p.replace(kind=p.KEYWORD_ONLY) for name, p in own.parameters.items() if name != "flags"]
        signature = own.replace(parameters=[*options, *rest])
        wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
        wrapper.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        wrapper.__signature__ = signature  # type: ignore[attr-defined]
        return wrapper

    return decorate


def _option(model: type[Settings], name: str, field: FieldInfo) -> inspect.Parameter:
    kind = plain_type(field.annotation)
    flag = model.flag_name(name)
    if kind is bool:
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    described = typer.Option(flag, help=help_text(model, name), show_default=False)
    annotation = Annotated[kind | None, described]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def plain_type(annotation: Any) -> Any:
    """What a command line can carry: `int | None` -> int, `tuple[str, ...]` -> list[str]; choices stay; else str."""
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(arg for arg in get_args(annotation) if arg is not type(None))
    if get_origin(annotation) is tuple:
        return list[str]  # a flag that may be given several times
    if get_origin(annotation) is Literal or annotation in SIMPLE:
        return annotation
    return str


def help_text(model: type[Settings], name: str) -> str:
    field = model.model_fields[name]
    notes = [f"default: {default_text(field)}"] if default_text(field) else []
    if bounds := bounds_text(field):
        notes.append(bounds)
    if env := model.env_name(name):
        notes.append(f"env var: {env}")
    return f"{field.description}  [{'; '.join(notes)}]" if notes else str(field.description)


def default_text(field: FieldInfo) -> str:
    """The default as a user would write it; empty where there is none to name."""
    value = field.default
    if value is None or value is PydanticUndefined or value == "":
        return ""
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "on" if value else "off"
    return number_text(field, value)


def number_text(field: FieldInfo, value: Any) -> str:
    """A default or a limit of `field`: whole numbers without a fraction, bytes with a unit (16GiB)."""
    if is_bytes(field):
        return ByteSize(value).human_readable().replace(".0", "")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def is_bytes(field: FieldInfo) -> bool:
    return ByteSize in (field.annotation, *get_args(field.annotation))


def bounds_text(field: FieldInfo) -> str:
    """Limits of a number in words, from the field's own constraints: `1 to 256`, `at least 1`, `more than 0`."""
    found = {key: getattr(m, key) for m in field.metadata for key in ("ge", "gt", "le", "lt") if hasattr(m, key)}
    shown = {key: number_text(field, value) for key, value in found.items()}
    if "ge" in shown and "le" in shown:
        return f"{shown['ge']} to {shown['le']}"
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    return ", ".join(f"{words[key]} {value}" for key, value in shown.items())
