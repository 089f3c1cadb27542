"""ManifestFile: one rendered file, its place in a recipe, and the comments at its top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cosmos3_serve.deploy.kube.base import KubeObject
from cosmos3_serve.deploy.values import PLACEHOLDER
from cosmos3_serve.deploy.yamltext import comment, to_yaml

# In the order in which they are applied.
PARTS = ("model-cache", "deploy", "overlay", "perf", "batch", "ingress")
# Nothing else depends on these parts, so an unset value in them does not block a deployment.
OPTIONAL = ("perf", "batch", "ingress")


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """
    Args:
        path: below the recipe's folder, with forward slashes.
        part: one of `PARTS`.
        command: that wrote it, for its first line.
        note: one more comment line.
    """

    path: str
    part: str
    documents: list[dict[str, Any]] = field(hash=False)
    command: str = ""
    note: str = ""

    def text(self) -> str:
        head = f"Written by `{self.command}`: change values there." if self.command else ""
        head += f"\n{self.note}" if self.note else ""
        body = to_yaml(self.documents)
        if PLACEHOLDER in body:
            head += f"\n{PLACEHOLDER}…: set it (`--set`, or here) before you apply this file."
        if f"{PLACEHOLDER}/cosmos3-" in body:
            head += "\nOur own images are not published: docs/containers.md says how to build them."
        return comment(head.strip()) + body


def file(path: str, part: str, objects: Sequence[KubeObject], command: str = "", note: str = "") -> ManifestFile:
    return ManifestFile(path, part, [each.document() for each in objects], command, note)
