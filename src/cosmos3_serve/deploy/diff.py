"""Differences between a running or stored object and the rendering, in the fields that we set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from cosmos3_serve.deploy.check import name_of
from cosmos3_serve.deploy.yamltext import from_yaml
from cosmos3_serve.errors import InputError

# Written by the cluster, or by kubectl for itself.
SERVER_METADATA = {
    "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink", "finalizers",
    "ownerReferences", "namespace",
}  # fmt: skip
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
MISSING = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """`there`: in the file; `rendered`: what the rendering would set. None: not there."""

    object: str
    path: str
    there: Any
    rendered: Any

    def as_dict(self) -> dict[str, Any]:
        return {"object": self.object, "path": self.path, "there": self.there, "rendered": self.rendered}

    def lines(self) -> list[str]:
        return [f"{self.object} {self.path}", f"  - {_shown(self.there)}", f"  + {_shown(self.rendered)}"]


def difference(
    there: Sequence[Mapping[str, Any]], rendered: Sequence[Mapping[str, Any]], *, everything: bool = False
) -> list[Difference]:
    """
    Args:
        there: the objects of the file.
        rendered: the objects of the rendering; those that the file does not have are left alone.
        everything: also what the file sets and the rendering does not (a cluster's defaults among it).

    Raises:
        InputError: code `diff_nothing_in_common`: no object of the file is one of the rendering.
    """
    ours = {(str(d.get("apiVersion")), name_of(d)): d for d in rendered}
    found: list[Difference] = []
    common = 0
    for document in there:
        match = ours.get((str(document.get("apiVersion")), name_of(document)))
        if match is None:
            continue
        common += 1
        found += _compare(name_of(document), "", _own(document), _own(match), everything)
    if not common:
        raise InputError(
            "no object of the file is one of this rendering",
            code="diff_nothing_in_common",
            remedy=f"the rendering has {', '.join(sorted(name for _, name in ours))[:300]}; choose --target, --profile "
            "or --set name=… accordingly",
        )
    return found


def _own(document: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {k: v for k, v in (document.get("metadata") or {}).items() if k not in SERVER_METADATA}
    annotations = {k: v for k, v in (metadata.get("annotations") or {}).items() if k != LAST_APPLIED}
    metadata.pop("annotations", None)
    if annotations:
        metadata["annotations"] = annotations
    return {**{k: v for k, v in document.items() if k != "status"}, "metadata": metadata}


def _compare(where: str, path: str, there: Any, ours: Any, everything: bool) -> Iterator[Difference]:
    if path.endswith(".serveConfigV2") and isinstance(ours, str) and isinstance(there, str):
        there, ours = _parsed(there), _parsed(ours)
    if isinstance(ours, Mapping) and isinstance(there, Mapping):
        for key in [*ours, *(k for k in there if k not in ours and everything)]:
            here = f"{path}.{key}" if path else str(key)
            yield from _compare(where, here, there.get(key, MISSING), ours.get(key, MISSING), everything)
    elif isinstance(ours, list) and isinstance(there, list):
        yield from _lists(where, path, there, ours, everything)
    elif not _same(there, ours):
        yield Difference(where, path, _plain(there), _plain(ours))


def _lists(where: str, path: str, there: list[Any], ours: list[Any], everything: bool) -> Iterator[Difference]:
    theirs, own = _by_name(there), _by_name(ours)
    if theirs is None or own is None:
        for number, (left, right) in enumerate(zip_longest(there, ours, fillvalue=MISSING)):
            yield from _compare(where, f"{path}.{number}", left, right, everything)
        return
    # Entries with names (containers, variables, volumes) are compared by name; one that is only there is a difference,
    # since a cluster adds no entry to such a list without being told.
    for name in dict.fromkeys([*own, *theirs]):
        yield from _compare(where, f"{path}.{name}", theirs.get(name, MISSING), own.get(name, MISSING), everything)


def _by_name(items: list[Any]) -> dict[str, Any] | None:
    if not items or not all(isinstance(item, Mapping) and "name" in item for item in items):
        return None
    found = {str(item["name"]): item for item in items}
    return found if len(found) == len(items) else None


def _same(there: Any, ours: Any) -> bool:
    if there is MISSING or ours is MISSING:
        return there is ours
    # YAML of other tools may write "8000" and 8000 for the same quantity.
    return bool(there == ours) or (
        isinstance(there, str | int | float) and isinstance(ours, str | int | float) and str(there) == str(ours)
    )


def _parsed(text: str) -> Any:
    """YAML within YAML is compared by what it says; text that is none stays text."""
    try:
        found = from_yaml(text, "serveConfigV2")
    except InputError:
        return text
    return found[0] if len(found) == 1 else text


def _plain(value: Any) -> Any:
    return None if value is MISSING else value


def _shown(value: Any) -> str:
    if value is None:
        return "(not set)"
    text = str(value)
    return text if len(text) <= 200 else text[:197] + "…"
