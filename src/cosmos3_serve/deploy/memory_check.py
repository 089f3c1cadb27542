"""Shared memory counts towards a container's memory: what holds it must be allowed more than it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cosmos3_serve.deploy.fields import amount


def memory_findings(spec: Mapping[str, Any], shared: str | None = None) -> Iterator[tuple[str, str]]:
    """Place and words of each finding in a pod's spec.

    Args:
        shared: size of a /dev/shm that an operator adds to the container `main`.
    """
    sizes = {
        volume["name"]: volume["emptyDir"].get("sizeLimit")
        for volume in spec.get("volumes") or []
        if (volume.get("emptyDir") or {}).get("medium") == "Memory"
    }
    for number, container in enumerate(spec.get("containers") or []):
        held = [sizes[mount["name"]] for mount in container.get("volumeMounts") or [] if mount["name"] in sizes]
        held += [shared] if shared and container.get("name") == "main" else []
        limit = ((container.get("resources") or {}).get("limits") or {}).get("memory")
        try:
            most, room = (sum(amount(str(each)) for each in held if each), amount(str(limit))) if limit else (0, 0)
        except ValueError:
            continue  # the schemas say what is wrong with a quantity
        if held and limit and (most >= room or None in held):
            shown = " + ".join(str(each or "no limit") for each in held)
            yield f"containers.{number}.resources.limits.memory", f"{limit} is not above its shared memory ({shown})"
