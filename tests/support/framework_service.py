"""Services on the framework engine for tests: on the DOUBLE in this interpreter, or on the real one in its own.

Run as a module it is the service on the double; only the proof of the revision is left out: a double is not the pin.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from cosmos3_serve.generator.local import LocalGenerator
from cosmos3_serve.settings import GeneratorSettings

SUPPORT = Path(__file__).parent
SRC = SUPPORT.parents[1] / "src"
DOUBLE = SUPPORT / "framework_double"
CPU = SUPPORT / "framework_cpu"
REAL_ENV = "COSMOS3_TEST_FRAMEWORK_PYTHON"
PRETENDED = json.dumps({"GPU": 1, "CPU": 4})  # Ray then places upstream's worker, which asks for a GPU


class DoubleGenerator(LocalGenerator):
    """Our service over the double, which needs no GPU, no torch and no weights."""

    def __init__(self, environ: dict[str, str], folder: Path) -> None:
        self.events_path = folder / "events.jsonl"
        checkpoint = folder / "double-checkpoint"
        checkpoint.mkdir(parents=True, exist_ok=True)
        (checkpoint / "config.json").write_text("{}")
        (checkpoint / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
        (checkpoint / "WEIGHTS.json").write_text('{"weights": "random"}')
        own = {
            "COSMOS3_ENGINE": "framework",
            "NPA_COSMOS3_RAY_CHECKPOINT": str(checkpoint),
            "COSMOS3_DOUBLE_EVENTS": str(self.events_path),
            "PYTHONPATH": os.pathsep.join(map(str, (DOUBLE, SRC, SUPPORT.parent))),
            "RAY_OVERRIDE_RESOURCES": PRETENDED,
        }
        super().__init__(own | environ, folder)

    def command(self) -> list[str]:
        return [sys.executable, "-m", "support.framework_service"]

    def events(self, kind: str) -> list[list[str]]:
        """Sample names of each event: `batch` is a coalesced batch, `inference` a call of `generate_batch`."""
        return [event["names"] for event in self._events() if event["event"] == kind]

    def worker_pids(self) -> list[int]:
        """Process id of the worker of each event, in order."""
        return [event["pid"] for event in self._events()]

    def _events(self) -> list[dict[str, Any]]:
        if not self.events_path.exists():
            return []
        return [json.loads(line) for line in self.events_path.read_text().splitlines()]


class RealGenerator(LocalGenerator):
    """Our service over the real framework, in its own interpreter, with the CPU patches and random weights."""

    def __init__(self, python: Path, checkpoint: Path, environ: dict[str, str], folder: Path) -> None:
        self.python = python
        self.events_path = folder / "events.jsonl"
        own = {
            "COSMOS3_ENGINE": "framework",
            "NPA_COSMOS3_RAY_CHECKPOINT": str(checkpoint),
            "COSMOS3_FRAMEWORK_ARGS": "use_torch_compile=false",
            "COSMOS3_TEST_FRAMEWORK_CPU": "1",
            "COSMOS3_TEST_FRAMEWORK_EVENTS": str(self.events_path),
            "COSMOS_DEVICE": "cpu",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join(map(str, (CPU, SRC))),
            "RAY_OVERRIDE_RESOURCES": PRETENDED,
        }
        super().__init__(own | environ, folder, start_timeout_s=840.0)

    def command(self) -> list[str]:
        return [str(self.python), "-m", self.module]

    def events(self) -> list[list[str]]:
        """Sample names of each call of upstream's `generate_batch`."""
        found = map(json.loads, self.events_path.read_text().splitlines())
        return [event["names"] for event in found]


def serve_double() -> None:
    import cosmos3_serve.generator.engines.framework.start as start
    import cosmos3_serve.generator.prepare as prepare
    import cosmos3_serve.generator.serve as service

    def without_proof(settings: GeneratorSettings) -> None:
        start.extra_fields(settings)
        os.environ[start.TRAINING_ENV] = "0"

    prepare.prepare_framework = without_proof
    service.run_generator(GeneratorSettings.load())


if __name__ == "__main__":
    serve_double()
