"""The generator service with the scripted engine in place of the real one; everything else is the product."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from cosmos3_serve.generator import serve
from cosmos3_serve.generator.local import LocalGenerator
from cosmos3_serve.settings import GeneratorSettings

TESTS = Path(__file__).parents[1]


class ScriptedGenerator(LocalGenerator):
    """As `LocalGenerator`; starts faster, for nothing is loaded."""

    kind = "scripted"
    module = "support.scripted_service"

    def defaults(self, cache_dir: Path, name: str) -> dict[str, str]:
        return {
            **super().defaults(cache_dir, name),
            "PYTHONPATH": os.pathsep.join((str(TESTS), str(TESTS.parent / "src"))),
        }


def _deploy_scripted(*args: Any) -> Any:
    # Not before: both import Ray, which reads its environment when it is imported.
    from support.scripted_engine import ScriptedModel

    from cosmos3_serve.generator.replica import deployment as model

    model.ModelReplica = ScriptedModel  # type: ignore[misc]
    return _deploy(*args)


if __name__ == "__main__":
    _deploy, serve._deploy = serve._deploy, _deploy_scripted
    serve.run_generator(GeneratorSettings.load())
