"""KubeModel: what every typed piece of a manifest has in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

# A DNS label, and at most what a Service may be called.
NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?$"


class KubeModel(BaseModel):
    """Written in Python's names, read and written in Kubernetes' names. No unknown fields: a typo is an error."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, strict=False
    )

    def document(self) -> dict[str, Any]:
        """As Kubernetes' API has it; what was not set is not there."""
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")


class Meta(KubeModel):
    name: str = Field(pattern=NAME, max_length=63)
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None


class PodMeta(KubeModel):
    """Of a template: its pods are named by their controller."""

    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None


class KubeObject(KubeModel):
    """One object of a manifest. `api_version` and `kind` are fixed by each subclass."""

    api_version: str
    kind: str
    metadata: Meta


def labels(name: str, component: str) -> dict[str, str]:
    """Of everything that belongs to one deployment."""
    return {"app.kubernetes.io/name": name, "app.kubernetes.io/component": component}
