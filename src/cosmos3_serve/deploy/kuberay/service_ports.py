"""The ports that KubeRay's operator needs in a RayService: without them it creates no Service and is never Ready.

It takes the ports of that Service from the first container of the HEAD, and sends their numbers to the workers' pods
(source: KubeRay 1.6.2, the operator's own code). So head and workers must name the same number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cosmos3_serve.deploy.kuberay.pods import SERVE


def port_findings(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Place and words of each finding in `spec` of a RayService."""
    cluster = spec.get("rayClusterConfig") or {}
    head = _serving(cluster.get("headGroupSpec") or {})
    if head is None:
        yield (
            "rayClusterConfig.headGroupSpec.template.spec.containers.0.ports",
            f"no port is named {SERVE}: the operator would make no Service, and the RayService would never be Ready",
        )
        return
    for number, group in enumerate(cluster.get("workerGroupSpecs") or []):
        found = _serving(group)
        if found != head:
            yield (
                f"rayClusterConfig.workerGroupSpecs.{number}.template.spec.containers.0.ports",
                f"the port {SERVE} is {found or 'missing'} here and {head} on the head, whose number the Service uses",
            )


def _serving(group: Mapping[str, Any]) -> int | None:
    containers = ((group.get("template") or {}).get("spec") or {}).get("containers") or [{}]
    ports = {port.get("name"): port.get("containerPort") for port in containers[0].get("ports") or []}
    return ports.get(SERVE)
