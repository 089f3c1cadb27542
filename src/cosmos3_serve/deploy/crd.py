"""Operators' own definitions (CustomResourceDefinition) as schemas, read from files.

An API server drops a field that a definition does not have; here it is a finding. Rules in CEL
(`x-kubernetes-validations`) are an API server's to evaluate and are left out.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cosmos3_serve.deploy.yamltext import from_yaml
from cosmos3_serve.errors import InputError

Kind = tuple[str, str]
SUFFIXES = (".yaml", ".yml", ".json", ".yaml.xz", ".yml.xz")


def read_definitions(paths: Iterable[Path]) -> dict[Kind, dict[str, Any]]:
    """Schemas by apiVersion and kind; of a folder, every definition in it.

    Raises:
        InputError: code `crds_unreadable`: a path holds no definition, or cannot be read.
    """
    found: dict[Kind, dict[str, Any]] = {}
    for path in paths:
        files = sorted(each for each in path.iterdir() if each.name.endswith(SUFFIXES)) if path.is_dir() else [path]
        here = {kind: schema for each in files for kind, schema in _definitions(each)}
        if not here:
            raise _unreadable(path, "holds no CustomResourceDefinition")
        found |= here
    return found


def _definitions(path: Path) -> Iterator[tuple[Kind, dict[str, Any]]]:
    try:
        data = path.read_bytes()
        text = (lzma.decompress(data) if path.name.endswith(".xz") else data).decode("utf-8")
    except (OSError, lzma.LZMAError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text, or not xz"
        raise _unreadable(path, f"cannot be read: {why}") from None
    for document in from_yaml(text, path.name):
        if document.get("kind") != "CustomResourceDefinition":
            continue
        try:
            spec = document["spec"]
            for version in spec["versions"]:
                kind = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
                yield kind, closed(version["schema"]["openAPIV3Schema"])
        except (KeyError, TypeError):
            raise _unreadable(path, "holds a CustomResourceDefinition without group, versions or schema") from None


def closed(node: Any) -> Any:
    """The schema as JSON Schema in which an unknown field is an error, and `int-or-string` is either."""
    if isinstance(node, list):
        return [closed(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    found = {key: closed(value) for key, value in node.items()}
    if node.get("x-kubernetes-int-or-string"):
        found.pop("type", None)
        found["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if "properties" in node and node.get("type") == "object" and not node.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    return found


def _unreadable(path: Path, why: str) -> InputError:
    return InputError(
        f"{path.name} {why}",
        code="crds_unreadable",
        remedy="name the operator's own file (config/crd/bases of its repository), or a folder of such files",
    )
