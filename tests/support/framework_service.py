"""Services on the framework engine for tests: on the DOUBLE in this interpreter, or on the real one in its own.

Run as a module it is the service on the double. Left out is the proof of the revision, since a double is not the pin;
the guardrails' packages and deciders are doubles too. With the argument `prepare` it ends once everything is proved.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.guarded_service import use_doubles
from support.hub import StubHub

from cosmos3_serve.generator.local import LocalGenerator
from cosmos3_serve.settings import GeneratorSettings
from cosmos3_serve.weights.assets import NANO

SUPPORT = Path(__file__).parent
SRC = SUPPORT.parents[1] / "src"
DOUBLE = SUPPORT / "framework_double"
CPU = SUPPORT / "framework_cpu"
SOCKETS = SUPPORT / "sockets"
REAL_ENV = "COSMOS3_TEST_FRAMEWORK_PYTHON"
PRETENDED = json.dumps({"GPU": 1, "CPU": 4})  # Ray then places upstream's worker, which asks for a GPU


class DoubleGenerator(LocalGenerator):
    """Our service over the double, which needs no GPU, no torch and no weights: guardrails on, the checkpoint and all
    else from a stub Hub (`support.upstream_hub`), no connection to anywhere else."""

    def __init__(self, environ: dict[str, str], folder: Path) -> None:
        self.events_path = folder / "events.jsonl"
        self.sockets_path = folder / "sockets"
        own = {
            "COSMOS3_ENGINE": "framework",
            "NPA_COSMOS3_RAY_CHECKPOINT": NANO.repo,
            "NPA_COSMOS3_RAY_GUARDRAILS": "true",
            "HF_HOME": str(folder / "huggingface"),
            "COSMOS3_DOUBLE_EVENTS": str(self.events_path),
            "COSMOS3_TEST_SOCKETS": str(self.sockets_path),
            "PYTHONPATH": os.pathsep.join(map(str, (SOCKETS, DOUBLE, SRC, SUPPORT.parent))),
            "RAY_OVERRIDE_RESOURCES": PRETENDED,
        }
        super().__init__(own | environ, folder)

    def prepare(self, hub: StubHub) -> None:
        """The part of a start that needs the Hub, and no more."""
        command = [*self.command(), "prepare"]
        done = subprocess.run(
            command, env={**self.environ, **hub.environ()}, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr[-3000:]

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
        self.folder = folder
        self.events_path = folder / "events.jsonl"
        self.sockets_path = folder / "sockets"
        own = {
            "COSMOS3_ENGINE": "framework",
            "NPA_COSMOS3_RAY_CHECKPOINT": str(checkpoint),
            "COSMOS3_FRAMEWORK_ARGS": "use_torch_compile=false",
            "COSMOS3_TEST_FRAMEWORK_CPU": "1",
            "COSMOS3_TEST_FRAMEWORK_EVENTS": str(self.events_path),
            "COSMOS_DEVICE": "cpu",
            "HF_HUB_OFFLINE": "1",
            "COSMOS3_TEST_SOCKETS": str(folder / "sockets"),
            "PYTHONPATH": os.pathsep.join(map(str, (CPU, SOCKETS, SRC))),
            "RAY_OVERRIDE_RESOURCES": PRETENDED,
        }
        super().__init__(own | environ, folder, start_timeout_s=840.0)

    def command(self) -> list[str]:
        return [str(self.python), "-m", self.module]

    def copies(self) -> list[Path]:
        """The folders in which upstream may convert an audio autoencoder."""
        return sorted(path for path in (self.folder / "framework" / "sound").iterdir() if path.is_dir())

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
    use_doubles()
    if sys.argv[1:] == ["prepare"]:
        prepare.prepare(GeneratorSettings.load())
    else:
        service.run_generator(GeneratorSettings.load())


if __name__ == "__main__":
    serve_double()
