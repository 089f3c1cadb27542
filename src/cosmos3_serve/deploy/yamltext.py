"""YAML out and in: documents as text that a person can read, and text as documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cosmos3_serve.errors import InputError, StartRefused, UsageError

WIDTH = 120


def yaml_module() -> Any:
    """PyYAML. Raises StartRefused (code `deploy_extra_missing`) where it is not installed."""
    try:
        import yaml
    except ImportError:
        raise StartRefused(
            "manifests need PyYAML, and it is not installed",
            code="deploy_extra_missing",
            remedy="pip install '.[deploy]' in a checkout of cosmos3-serve",
        ) from None
    return yaml


def to_yaml(documents: Iterable[Mapping[str, Any]], *, heading: str = "") -> str:
    """Several documents of one file; scripts as blocks, keys in the order of the model."""
    yaml = yaml_module()

    class Dumper(yaml.SafeDumper):  # type: ignore[misc,name-defined]
        def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:
            return super().increase_indent(flow, False)  # lists are indented below their key

    def text(dumper: Any, value: str) -> Any:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    parts = [
        yaml.dump(dict(document), Dumper=Dumper, sort_keys=False, width=WIDTH, allow_unicode=True)
        for document in documents
    ]
    return comment(heading) + "---\n".join(parts)


def comment(text: str) -> str:
    """Lines for the top of a file; nothing for an empty text."""
    return "".join(f"# {line}\n" if line else "#\n" for line in text.splitlines())


def from_yaml(text: str, where: str) -> list[dict[str, Any]]:
    """The documents of a manifest; empty ones are left out.

    Raises:
        InputError: code `manifest_unreadable`: no YAML, or a document that is no object.
    """
    yaml = yaml_module()
    try:
        # libyaml's loader, where it is there: an operator's definition has a megabyte and more.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        found = [document for document in yaml.load_all(text, Loader=loader) if document is not None]
    except yaml.YAMLError as error:
        raise _unreadable(f"{where} is no YAML: {_first_line(error)}") from None
    documents: list[dict[str, Any]] = []
    for number, document in enumerate(found, 1):
        if not isinstance(document, dict):
            raise _unreadable(f"document {number} of {where} is no object")
        # `kubectl get -o yaml` of several objects gives one List.
        if document.get("kind") == "List" and isinstance(document.get("items"), list):
            documents += document["items"]
        else:
            documents.append(document)
    return documents


def one_mapping(text: str, where: str) -> dict[str, Any]:
    """A values file. Raises UsageError (code `deploy_values_file`)."""
    yaml = yaml_module()
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(
            f"{where} is no YAML: {_first_line(error)}", code="deploy_values_file", remedy="write `key: value` lines"
        ) from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise UsageError(
            f"{where} holds no mapping of keys to values", code="deploy_values_file", remedy="write `key: value` lines"
        )
    return found


def _first_line(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    line = f"line {mark.line + 1}: " if mark is not None else ""
    return line + str(getattr(error, "problem", None) or error).splitlines()[0][:200]


def _unreadable(detail: str) -> InputError:
    return InputError(detail, code="manifest_unreadable", remedy="give a manifest as `deploy render` or kubectl writes")
