"""Placement: what an operator may ask of the nodes that pods run on, for all pods and for those of one role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cosmos3_serve.deploy.fields import Name, Names, Requirements, Tolerations, requirement, toleration
from cosmos3_serve.deploy.kube.placement import Affinity, NodeAffinity, NodeSelector, NodeTerm
from cosmos3_serve.deploy.kube.pod import NameRef
from cosmos3_serve.deploy.values import Values, value


class Placement(Values):
    """Of one role; what `pods.*` says holds besides."""

    node_selector: Mapping[str, str] = value({}, "Label of the nodes that these pods must run on.")
    node_affinity: Requirements = value(
        (), "Requirements of those nodes' labels, `;` between them: `zone in (a,b); !spot`; all must hold."
    )
    tolerations: Tolerations = value((), "Taints that these pods tolerate: key, key=value, key:Effect; * is every one.")
    priority_class: Name | None = value(None, "PriorityClass of these pods.")
    runtime_class: Name | None = value(None, "RuntimeClass of these pods, such as nvidia.")


class Pods(Placement):
    """Of every pod of a target, the jobs' pods among them."""

    image_pull_secrets: Names = value((), "Secrets with which images are pulled.")


def placed(pods: Pods, *roles: Placement) -> dict[str, Any]:
    """Fields of a PodSpec. Requirements and tolerations add up; of the rest, the last role that says something wins."""
    asked = (pods, *roles)
    requirements = [requirement(text) for each in asked for text in each.node_affinity]
    tolerations = [toleration(text) for text in dict.fromkeys(text for each in asked for text in each.tolerations)]
    nodes = {label: text for each in asked for label, text in each.node_selector.items()}
    affinity = NodeAffinity(
        required_during_scheduling_ignored_during_execution=NodeSelector(
            node_selector_terms=[NodeTerm(match_expressions=requirements)]
        )
    )
    return {
        "image_pull_secrets": [NameRef(name=name) for name in pods.image_pull_secrets] or None,
        "node_selector": nodes or None,
        "affinity": Affinity(node_affinity=affinity) if requirements else None,
        "tolerations": tolerations or None,
        "priority_class_name": next((each.priority_class for each in reversed(asked) if each.priority_class), None),
        "runtime_class_name": next((each.runtime_class for each in reversed(asked) if each.runtime_class), None),
    }
