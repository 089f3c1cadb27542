"""Checks of a manifest before it is applied: schema, placeholders, credentials, contradictions.

Kubernetes' own kinds are checked against Kubernetes' own schemas (package `kubernetes-validate`), strictly: an unknown
field is a finding. Custom kinds are checked against condensed schemas of ours (`schemas/`), and every pod template in
them against Kubernetes' schema, since the real definitions embed exactly that; and against the operators' own
definitions where they are given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from cosmos3_serve.deploy.crd import Kind
from cosmos3_serve.deploy.dynamo import overlay
from cosmos3_serve.deploy.kube.pod import containers_of
from cosmos3_serve.deploy.kuberay.config_check import config_findings
from cosmos3_serve.deploy.kuberay.service_ports import port_findings
from cosmos3_serve.deploy.memory_check import memory_findings
from cosmos3_serve.deploy.values import PLACEHOLDER
from cosmos3_serve.errors import FieldError, Refusal, StartRefused, UsageError

KUBERNETES = "1.32"
SCHEMAS = Path(__file__).parent / "schemas"
CUSTOM = {
    ("nvidia.com/v1beta1", "DynamoGraphDeployment"): "dynamographdeployment.json",
    ("ray.io/v1", "RayService"): "rayservice.json",
    ("kustomize.config.k8s.io/v1beta1", "Kustomization"): "kustomization.json",
}
_CREDENTIAL = re.compile(r"(TOKEN|PASSWORD|SECRET|API_KEY|ACCESS_KEY(_ID)?)$")
_NO_CREDENTIAL = re.compile(r"_TOKEN_ENV$|_FILE$")


@dataclass(frozen=True, slots=True)
class Found:
    """`code` is stable; `field` is object and path, such as `Job/x spec.template.spec`."""

    code: str
    field: str
    text: str


def check(
    documents: Iterable[Mapping[str, Any]],
    *,
    kubernetes: str = KUBERNETES,
    definitions: Mapping[Kind, Mapping[str, Any]] | None = None,
) -> list[Found]:
    """Every finding of every document.

    Args:
        definitions: the operators' own (`crd.read_definitions`).

    Raises:
        StartRefused: code `deploy_extra_missing`: the validator is not installed; nothing was checked.
        UsageError: code `deploy_kubernetes_version`: no schemas of that version.
    """
    found: list[Found] = []
    documents = list(documents)
    _require_version(kubernetes)
    for document in documents:
        if not all(isinstance(document.get(key), str) and document[key] for key in ("apiVersion", "kind")):
            found.append(Found("no_object", name_of(document), "has no apiVersion or no kind"))
            continue
        if document["kind"] != "Kustomization" and not (document.get("metadata") or {}).get("name"):
            found.append(Found("no_object", name_of(document), "has no metadata.name"))
        found += _schema(document, kubernetes, definitions or {})
        found += _placeholders(document)
        found += _credentials(document)
        found += _routing(document)
        found += _ray_service(document)
        found += _memory(document)
    return found + list(_overlays(documents))


def require_sound(
    documents: Iterable[Mapping[str, Any]],
    *,
    kubernetes: str = KUBERNETES,
    definitions: Mapping[Kind, Mapping[str, Any]] | None = None,
    unfinished: Collection[str] = (),
) -> int:
    """The number of objects checked.

    Args:
        unfinished: names (`Job/x`) of objects that may still hold placeholders.

    Raises:
        Refusal: code `manifest_invalid`; `errors` holds every finding.
    """
    documents = list(documents)
    found = [
        each
        for each in check(documents, kubernetes=kubernetes, definitions=definitions)
        if each.code != "placeholder" or each.field.split(" ")[0] not in unfinished
    ]
    if found:
        more = f" (and {len(found) - 1} more)" if found[1:] else ""
        raise Refusal(
            f"the manifest cannot be applied as it is: {found[0].field}: {found[0].text}{more}",
            code="manifest_invalid",
            remedy="mend each finding (values: --set, --values) and check again",
            errors=[FieldError(each.field, each.text, each.code) for each in found],
        )
    return len(documents)


def name_of(document: Mapping[str, Any]) -> str:
    name = (document.get("metadata") or {}).get("name", "")
    return f"{document.get('kind', '?')}/{name}" if name else str(document.get("kind", "?"))


# ---- schemas -------------------------------------------------------------------------------------------------------


def _schema(
    document: Mapping[str, Any], kubernetes: str, definitions: Mapping[Kind, Mapping[str, Any]]
) -> Iterator[Found]:
    kind = (str(document.get("apiVersion")), str(document.get("kind")))
    if kind in definitions:
        yield from _custom(document, definitions[kind])
    if kind in CUSTOM:
        yield from _custom(document, schema(CUSTOM[kind]))
        for path, template in pod_templates(document):
            wrapped = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": template}
            for each in _kubernetes(wrapped, kubernetes):
                inner = each.field.partition(" ")[2].removeprefix("template")
                yield Found(each.code, f"{name_of(document)} {path}{inner}", each.text)
    elif kind not in definitions:
        yield from _kubernetes(document, kubernetes)


def _kubernetes(document: Mapping[str, Any], version: str) -> Iterator[Found]:
    validator = _validator()
    try:
        validator.validate(dict(document), version, strict=True)
    except validator.ValidationError as error:
        yield Found("schema", f"{name_of(document)} {_path(error.path)}".strip(), _short(error.message))
    except validator.SchemaNotFoundError:
        yield Found("no_schema", name_of(document), f"no schema of {document.get('apiVersion')} is known")


def _require_version(version: str) -> None:
    validator = _validator()
    known = [validator.major_minor(each) for each in validator.all_versions()]
    if version not in known:
        raise UsageError(
            f"there are no schemas of Kubernetes {version!r}",
            code="deploy_kubernetes_version",
            remedy=f"one of {known[0]} to {known[-1]}",
        )


def _validator() -> Any:
    try:
        import kubernetes_validate
        from kubernetes_validate import utils
    except ImportError:
        raise StartRefused(
            "nothing was checked: the schemas (kubernetes-validate) are not installed",
            code="deploy_extra_missing",
            remedy="pip install '.[deploy]' in a checkout of cosmos3-serve",
        ) from None
    del kubernetes_validate
    return utils


def _custom(document: Mapping[str, Any], definition: Mapping[str, Any]) -> Iterator[Found]:
    import jsonschema

    for error in jsonschema.Draft202012Validator(definition).iter_errors(document):
        yield Found("schema", f"{name_of(document)} {_path(error.path)}".strip(), _short(error.message))


@lru_cache
def schema(file: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SCHEMAS / file).read_text(encoding="utf-8"))
    return found


def pod_templates(document: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every pod template of a custom object with its path."""
    for key, value in document.items():
        here = f"{path}.{key}" if path else str(key)
        if key in ("podTemplate", "template") and isinstance(value, Mapping) and "spec" in value:
            yield here, value
        elif isinstance(value, Mapping):
            yield from pod_templates(value, here)
        elif isinstance(value, list):
            for number, item in enumerate(value):
                if isinstance(item, Mapping):
                    yield from pod_templates(item, f"{here}.{number}")


# ---- rules of ours -------------------------------------------------------------------------------------------------


def _placeholders(document: Mapping[str, Any]) -> Iterator[Found]:
    for path, text in _strings(document):
        if PLACEHOLDER in text:
            yield Found("placeholder", f"{name_of(document)} {path}", f"{text.splitlines()[0][:80]!r} must be replaced")


def _credentials(document: Mapping[str, Any]) -> Iterator[Found]:
    for container in containers_of(document):
        for variable in container.get("env") or []:
            name = str(variable.get("name", ""))
            if variable.get("value") and _CREDENTIAL.search(name) and not _NO_CREDENTIAL.search(name):
                where = f"{name_of(document)} container {container.get('name')}"
                yield Found("credential", where, f"{name} stands in the manifest; refer to a Secret")


def _routing(document: Mapping[str, Any]) -> Iterator[Found]:
    """A graph named round-robin must not enable affinity: its measurements would be wrong."""
    if document.get("kind") != "DynamoGraphDeployment" or not name_of(document).endswith("-round-robin"):
        return
    for path, text in _strings(document.get("spec") or {}):
        if "session-affinity" in text or "SESSION_AFFINITY" in text:
            yield Found("affinity_in_round_robin", f"{name_of(document)} spec.{path}", f"{text[:80]!r}")


def _ray_service(document: Mapping[str, Any]) -> Iterator[Found]:
    if document.get("kind") != "RayService":
        return
    spec = document.get("spec") or {}
    for place, words in port_findings(spec):
        yield Found("serve_port", f"{name_of(document)} spec.{place}", words)
    for code, place, words in config_findings(str(spec.get("serveConfigV2") or "")):
        yield Found(code, f"{name_of(document)} spec.serveConfigV2{place}", words)


def _memory(document: Mapping[str, Any]) -> Iterator[Found]:
    for path, template in pod_templates(document):
        component = _at(document, path.rpartition(".")[0])
        shared = component.get("sharedMemorySize") if document.get("kind") == "DynamoGraphDeployment" else None
        for place, words in memory_findings(template.get("spec") or {}, shared):
            yield Found("shared_memory", f"{name_of(document)} {path}.spec.{place}", words)


def _at(document: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    here: Any = document
    for part in path.split("."):
        here = here[int(part)] if isinstance(here, list) else here[part]
    return here if isinstance(here, Mapping) else {}


def _overlays(documents: Sequence[Mapping[str, Any]]) -> Iterator[Found]:
    graphs = [d for d in documents if d.get("kind") == "DynamoGraphDeployment"]
    for document in documents:
        if document.get("kind") != "Kustomization":
            continue
        for patch in document.get("patches") or []:
            operations = _operations(str(patch.get("patch", "")))
            for graph in graphs:
                try:
                    overlay.apply(graph, operations)
                except (KeyError, IndexError, TypeError, ValueError) as error:
                    yield Found("patch", "Kustomization patches", f"a path is not in {name_of(graph)}: {error}")


def _operations(text: str) -> list[dict[str, Any]]:
    from cosmos3_serve.deploy.yamltext import yaml_module

    found = yaml_module().safe_load(text)
    return found if isinstance(found, list) else []


def _strings(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _strings(item, f"{path}.{number}")


def _path(parts: Iterable[Any]) -> str:
    return ".".join(str(part) for part in parts)


def _short(text: str) -> str:
    return text if len(text) <= 240 else text[:120] + " … " + text[-110:]
