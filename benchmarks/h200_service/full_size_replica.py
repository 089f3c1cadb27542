"""The product's model replica, but for what it loads: components of Nano's size with RANDOM weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

from cosmos3_serve.generator.replica.deployment import ModelReplica


class FullSizeModel(ModelReplica):
    def __init__(self, settings: Any, checkpoint: Any, guardrails: None) -> None:
        with full_size():
            super().__init__(settings, checkpoint, guardrails)


def full_size() -> Any:
    """While it lasts, engines load random components; on a CPU small ones, for a dry run."""
    from h200_generator.full_size import random_components

    from cosmos3_serve.generator.engines.diffusers import engine

    def components(path: Path, device: Any) -> Any:
        return random_components(path, device, tiny=device.type == "cpu")

    return patch.object(engine, "load_components", components)
