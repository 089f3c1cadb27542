"""ManifestFile: one rendered file, where it belongs in a recipe, and what it says at its top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cosmos3_serve.deploy.kube.base import KubeObject
from cosmos3_serve.deploy.values import PLACEHOLDER
from cosmos3_serve.deploy.yamltext import comment, to_yaml

# In the order in which they are applied.
PARTS = ("model-cache", "deploy", "overlay", "perf", "batch")


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """
    Args:
        path: below the recipe's folder, with forward slashes.
        part: one of `PARTS`.
        command: that wrote it, for its first line.
    """

    path: str
    part: str
    documents: list[dict[str, Any]] = field(hash=False)
    command: str = ""

    def text(self) -> str:
        head = f"Written by `{self.command}`: change values there." if self.command else ""
        body = to_yaml(self.documents)
        if PLACEHOLDER in body:
            head += f"\n{PLACEHOLDER}…: what you must set (`--set`, or here); --check refuses the file until then."
        return comment(head.strip()) + body


def file(path: str, part: str, objects: Sequence[KubeObject], command: str = "") -> ManifestFile:
    return ManifestFile(path, part, [each.document() for each in objects], command)
