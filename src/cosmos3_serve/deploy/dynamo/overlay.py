"""A Kustomize overlay that adds to the worker what was asked for, as NVIDIA's recipe describes it, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cosmos3_serve.deploy.dynamo.values import DynamoValues
from cosmos3_serve.deploy.yamltext import to_yaml

WORKER = "/spec/components/1/podTemplate/spec"


def kustomization(values: DynamoValues, resource: str = "deploy.yaml") -> dict[str, Any]:
    """Patches of `spec.components[1]` alone, as JSON patches: a list of components has no merge key in Kustomize."""
    wanted = operations(values)
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [resource],
        **(
            {
                "patches": [
                    {
                        "target": {"group": "nvidia.com", "kind": "DynamoGraphDeployment"},
                        "patch": to_yaml_list(wanted),
                    }
                ]
            }
            if wanted
            else {}
        ),
    }


def operations(values: DynamoValues) -> list[dict[str, Any]]:
    overlay = values.overlay
    found: list[dict[str, Any]] = []
    if overlay.image_pull_secret:
        found.append(_add("imagePullSecrets", [{"name": overlay.image_pull_secret}]))
    if overlay.ngc_api_key:
        key = {"secretKeyRef": {"name": values.ngc_secret, "key": "NGC_API_KEY"}}
        found.append(_add("containers/0/env/-", {"name": "NGC_API_KEY", "valueFrom": key}))
    if overlay.node_selector:
        found.append(_add("nodeSelector", dict(overlay.node_selector)))
    return found


def _add(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": f"{WORKER}/{path}", "value": value}


def to_yaml_list(items: list[dict[str, Any]]) -> str:
    """The patch as Kustomize reads it: a YAML list in a string."""
    text = to_yaml([{"patch": items}])
    return "\n".join(line[2:] for line in text.splitlines()[1:])


def apply(document: Mapping[str, Any], operations: list[dict[str, Any]]) -> dict[str, Any]:
    """Apply the patches without Kustomize (RFC 6902 `add` only), so that the result of an overlay can be checked.

    Raises:
        KeyError, IndexError: a path does not exist; Kustomize would refuse it too.
    """
    import copy

    changed: dict[str, Any] = copy.deepcopy(dict(document))
    for operation in operations:
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        here: Any = changed
        for part in way:
            here = here[int(part)] if isinstance(here, list) else here[part]
        if isinstance(here, list):
            here.insert(len(here) if last == "-" else int(last), operation["value"])
        else:
            here[last] = operation["value"]
    return changed
