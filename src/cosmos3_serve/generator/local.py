"""LocalGenerator: a real generator service in a process of its own, for tests and trials."""

from __future__ import annotations

from pathlib import Path

from cosmos3_serve.service.local import LocalService
from cosmos3_serve.settings import TOKEN_ENV


class LocalGenerator(LocalService):
    """By default: engine diffusers, the tiny checkpoint with random weights, no guardrails, outputs below `cache_dir`,
    a fresh token. See `LocalService`."""

    kind = "generator"
    module = "cosmos3_serve.generator.serve"
    token_env = TOKEN_ENV

    def defaults(self, cache_dir: Path, name: str) -> dict[str, str]:
        return {
            "NPA_COSMOS3_RAY_HOST": "127.0.0.1",
            "NPA_COSMOS3_RAY_PORT": "0",
            "NPA_COSMOS3_RAY_CHECKPOINT": "tiny",
            "NPA_COSMOS3_RAY_GUARDRAILS": "false",
            "NPA_COSMOS3_RAY_OUTPUT_DIR": str(cache_dir / f"outputs-{name}"),
            "COSMOS3_ENGINE": "diffusers",
        }

    @property
    def output_root(self) -> Path:
        return Path(self.environ["NPA_COSMOS3_RAY_OUTPUT_DIR"])
