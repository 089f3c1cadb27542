"""Where a pod may run: tolerations and node affinity."""

from __future__ import annotations

from typing import Literal

from cosmos3_serve.deploy.kube.base import KubeModel


class Toleration(KubeModel):
    """Without a key: every taint."""

    key: str | None = None
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class NodeRequirement(KubeModel):
    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] | None = None


class NodeTerm(KubeModel):
    """Every requirement of a term must hold."""

    match_expressions: list[NodeRequirement]


class NodeSelector(KubeModel):
    node_selector_terms: list[NodeTerm]


class NodeAffinity(KubeModel):
    required_during_scheduling_ignored_during_execution: NodeSelector


class Affinity(KubeModel):
    node_affinity: NodeAffinity
