"""Field types that several groups of values share, and what their texts mean."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, StringConstraints

from cosmos3_serve.deploy.kube.base import NAME, QUANTITY
from cosmos3_serve.deploy.kube.placement import NodeRequirement, Toleration
from cosmos3_serve.deploy.values import words

Quantity = Annotated[str, StringConstraints(pattern=QUANTITY)]
Image = Annotated[str, StringConstraints(min_length=1, pattern=r"^\S+$")]
Name = Annotated[str, StringConstraints(pattern=NAME, max_length=63)]
Names = Annotated[tuple[Name, ...], BeforeValidator(words)]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]

_UNITS = {
    "m": 0.001, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip
_LABEL = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_TOLERATION = re.compile(rf"^(?P<key>{_LABEL}|\*)(?:=(?P<value>{_VALUE}))?(?::(?P<effect>[A-Za-z]+))?$")
_SET = re.compile(rf"^(?P<key>{_LABEL})\s+(?P<operator>in|notin)\s+\((?P<values>[^()]*)\)$")
_PLAIN = re.compile(rf"^(?P<absent>!?)(?P<key>{_LABEL})(?:\s*(?P<equals>==?|!=)\s*(?P<value>{_VALUE}))?$")


def amount(quantity: str) -> float:
    """A Kubernetes quantity as a number: bytes of memory, or cores."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)", quantity)
    if found is None or found[2] not in _UNITS:
        raise ValueError(f"{quantity!r} is not a quantity such as 16Gi")
    return float(found[1]) * _UNITS[found[2]]


def toleration(text: str) -> Toleration:
    """`key`, `key=value` or `*`, each with `:Effect` where one effect alone is tolerated. Raises ValueError."""
    found = _TOLERATION.match(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not key, key=value, key:Effect or key=value:Effect")
    key, value, effect = found["key"], found["value"], found["effect"]
    if effect not in (None, "NoSchedule", "PreferNoSchedule", "NoExecute"):
        raise ValueError(f"{text!r}: the effect is NoSchedule, PreferNoSchedule or NoExecute")
    if key == "*" and value is not None:
        raise ValueError(f"{text!r}: * has no value")
    return Toleration.model_validate(
        {
            "key": None if key == "*" else key,
            "operator": "Exists" if value is None else "Equal",
            "value": value,
            "effect": effect,
        }
    )


def requirement(text: str) -> NodeRequirement:
    """One requirement of a node's labels, in the notation of `kubectl get --selector`. Raises ValueError."""
    text = text.strip()
    if found := _SET.match(text):
        values = [each.strip() for each in found["values"].split(",")]
        if not all(each and re.fullmatch(_VALUE, each) for each in values):
            raise ValueError(f"{text!r}: the values are not labels' values")
        operator = "In" if found["operator"] == "in" else "NotIn"
        return NodeRequirement.model_validate({"key": found["key"], "operator": operator, "values": values})
    found = _PLAIN.match(text)
    if found is None or (found["absent"] and found["equals"]):
        raise ValueError(f"{text!r} is not key, !key, key=value, key!=value, key in (a,b) or key notin (a,b)")
    if found["equals"]:
        operator = "NotIn" if found["equals"] == "!=" else "In"
        return NodeRequirement.model_validate({"key": found["key"], "operator": operator, "values": [found["value"]]})
    return NodeRequirement.model_validate(
        {"key": found["key"], "operator": "DoesNotExist" if found["absent"] else "Exists"}
    )


def _clauses(given: object) -> object:
    """A list of requirements in one text: `;` ends one, since a comma stands within parentheses."""
    return tuple(each.strip() for each in given.split(";") if each.strip()) if isinstance(given, str) else given


def _tolerations(texts: Sequence[str]) -> tuple[str, ...]:
    for text in texts:
        toleration(text)
    return tuple(texts)


def _requirements(texts: Sequence[str]) -> tuple[str, ...]:
    for text in texts:
        requirement(text)
    return tuple(texts)


Tolerations = Annotated[tuple[str, ...], BeforeValidator(words), AfterValidator(_tolerations)]
Requirements = Annotated[tuple[str, ...], BeforeValidator(_clauses), AfterValidator(_requirements)]
Labels = Mapping[str, str]


def require_above_shm(memory: str, shm: str) -> None:
    """Raises ValueError. Shared memory counts towards the container's memory, which is killed before shm is full."""
    if amount(shm) >= amount(memory):
        raise ValueError(f"shm ({shm}) must be below memory ({memory}), of which it is a part")
