"""Jobs for the diffusers engine with the tiny checkpoint, resolved by the contract as the service does it."""

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Any

from support.tiny import tiny_checkpoint

from cosmos3_serve.contract.profile import diffusers_profile
from cosmos3_serve.contract.resolve import resolve_sample
from cosmos3_serve.contract.sample import SampleOverrides
from cosmos3_serve.errors import SampleError
from cosmos3_serve.generator.engines.diffusers.engine import DiffusersEngine
from cosmos3_serve.generator.engines.job import EngineJob, EngineResult
from cosmos3_serve.service.memory import freeze_started

# Set by `cpu_levels`; otherwise the engine takes as many as it takes for the tiny checkpoint.
THREADS = int(os.environ.get("COSMOS3_TEST_THREADS", "0")) or None
PROFILE = diffusers_profile("0.42.1", tiny=True)


@cache
def components() -> Any:
    """The loaded tiny checkpoint; shared, since loading is the dear part. From here on torch has as many threads as the
    engine takes for it: two of them take three times the CPU of one."""
    import torch

    from cosmos3_serve.generator.engines.diffusers.compute import thread_count, use_threads
    from cosmos3_serve.generator.engines.diffusers.loader import load_components

    loaded = load_components(tiny_checkpoint().path, torch.device("cpu"))
    use_threads(THREADS or thread_count(loaded.parameters, loaded.device))
    freeze_started()  # an engine that runs out of memory collects: half a second each time for what stays anyway
    return loaded


def make_engine(root: Path, monkeypatch: Any = None, **options: Any) -> DiffusersEngine:
    """An engine on the CPU that writes below `root`, with the shared components."""
    options = {"guardrails": None, "device": "cpu", "max_num_seqs": 8, "threads": THREADS, **options}
    module = "cosmos3_serve.generator.engines.diffusers.engine.load_components"
    if monkeypatch is None:
        return DiffusersEngine(tiny_checkpoint(), output_root=root, **options)
    with monkeypatch.context() as patch:
        patch.setattr(module, lambda path, device: components())
        return DiffusersEngine(tiny_checkpoint(), output_root=root, **options)


def make_job(root: Path, name: str, *, request_id: str = "r", seed: int = 1, **fields: Any) -> EngineJob:
    """A job of the sample `fields`; media fields are local paths."""
    resolved = resolve_sample(SampleOverrides(name=name, **fields), PROFILE, seed=seed)
    directory = root / request_id / name
    args = {**resolved.model_dump(mode="json"), "name": name, "output_dir": str(directory)}
    return EngineJob(request_id=request_id, name=name, output_dir=str(directory), args=args)


def generate(
    engine: DiffusersEngine, *jobs: EngineJob, cancelled: Any = None, on_step: Any = None
) -> list[EngineResult]:
    """One wave, finished."""
    items = engine.denoise(list(jobs), on_step or (lambda *_: None), cancelled or (lambda key: False))
    return [engine.finish(item) for item in items]


def latents(engine: DiffusersEngine, *jobs: EngineJob) -> list[Any]:
    """Final latents of one wave."""
    items = engine.denoise(list(jobs), lambda *_: None, lambda key: False)
    for item in items:
        if isinstance(item, SampleError):
            raise item
    return [item.latents for item in items]  # type: ignore[union-attr]


def fingerprint(job: EngineJob) -> dict[str, str]:
    """SHA-256 of each media file of a job, and of its actions."""
    import json

    found = {}
    for path in sorted(Path(job.output_dir).iterdir()):
        if path.suffix in (".jpg", ".mp4"):
            found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    outputs = json.loads((Path(job.output_dir) / "sample_outputs.json").read_text())
    content = json.dumps([o["content"] for o in outputs["outputs"]])
    return {**found, "content": hashlib.sha256(content.encode()).hexdigest()}
