"""What one GPU did with the diffusers engine alone: a record for `contract/targets.py`.

    PYTHONPATH=src python benchmarks/gpu_target.py --commit $(git rev-parse HEAD) --out record.json

The two samples of the golden evaluation in one wave, the same again, and each alone; every image verified by PIL, with
its hash. No Ray, no HTTP, no S3, no guardrails: this proves that the engine runs on the target, and nothing more. It is
not part of `make bench`: it refuses to run without a CUDA device.
"""

import argparse
import hashlib
import json
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cosmos3_serve.checks.golden import request
from cosmos3_serve.contract.profile import diffusers_profile
from cosmos3_serve.contract.resolve import resolve_sample
from cosmos3_serve.contract.sample import SampleOverrides
from cosmos3_serve.contract.targets import judge_targets
from cosmos3_serve.generator.engines.job import EngineJob
from cosmos3_serve.weights.checkpoint import TINY, resolve_checkpoint


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", default=TINY)
    parser.add_argument("--commit", default="unknown", help="of this repository")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("no CUDA device: there is nothing to record", file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory() as folder:
        record = measure(Path(folder), given.checkpoint)
    record["commit"] = given.commit
    given.out.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")
    print(json.dumps(record, indent=2, sort_keys=True))
    return 0 if record["passed"] else 4


def measure(root: Path, checkpoint_text: str) -> dict[str, Any]:
    import torch

    from cosmos3_serve.generator.engines.diffusers.engine import DiffusersEngine

    checkpoint = resolve_checkpoint(checkpoint_text, root / "cache")
    profile = diffusers_profile(version("diffusers"), tiny=checkpoint.id == TINY)
    outputs = root / "outputs"
    engine = DiffusersEngine(checkpoint, output_root=outputs, max_num_seqs=2, device="cuda", guardrails=False)
    info = engine.info()

    def job(run: str, sample: dict[str, Any]) -> EngineJob:
        resolved = resolve_sample(SampleOverrides.model_validate(sample), profile, seed=sample["seed"])
        directory = outputs / run / sample["name"]
        args = {**resolved.model_dump(mode="json"), "name": sample["name"], "output_dir": str(directory)}
        return EngineJob(request_id=run, name=sample["name"], output_dir=str(directory), args=args)

    def wave(run: str, *samples: dict[str, Any]) -> dict[str, dict[str, Any]]:
        items = engine.denoise([job(run, s) for s in samples], lambda *_: None, lambda key: False)
        results = [engine.finish(item) for item in items]
        for result in results:
            if result.error is not None:
                raise SystemExit(f"{result.name}: {result.error.code}: {result.error.message}")
        return {s["name"]: seen(outputs / run / s["name"] / "vision.jpg") for s in samples}

    samples = request()["samples"]
    together, again = wave("together", *samples), wave("again", *samples)
    alone = {name: image for s in samples for name, image in wave(f"alone-{s['name']}", s).items()}
    verdict = judge_targets("diffusers", info.capabilities)
    return {
        "what": "diffusers engine alone: two text2image samples in one inference batch of 2",
        "proves_not": "the service, S3, guardrails, trained weights",
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "passed": len({image["sha256"] for image in together.values()}) == len(samples),
        "card": info.device,
        "capabilities": list(info.capabilities),
        "target": verdict.target,
        "driver": driver(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "diffusers": version("diffusers"),
            "transformers": version("transformers"),
        },
        "dtype": info.dtype,
        "checkpoint": info.checkpoint,
        "checkpoint_revision": info.checkpoint_revision,
        "checkpoint_sha256": info.checkpoint_digest,
        "weights": info.weights,
        "guardrails": info.guardrails,
        "samples": samples,
        "images": together,
        "same_bytes_again": together == again,
        "same_bytes_alone": together == alone,
    }


def seen(path: Path) -> dict[str, Any]:
    """Size and hash of an image that PIL verifies and decodes; raises when it does not."""
    from PIL import Image

    with Image.open(path) as image:
        image.verify()
    with Image.open(path) as image:
        image.load()
        width, height = image.size
    data = path.read_bytes()
    return {"width": width, "height": height, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()[0].strip()


if __name__ == "__main__":
    sys.exit(main())
