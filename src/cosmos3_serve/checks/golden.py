"""Golden evaluations: what each one is, in the words of `golden-eval show` (docs/contract.md 8)."""

from __future__ import annotations

from typing import Any, Final

from cosmos3_serve.checks import golden_blockworld
from cosmos3_serve.contract.targets import TARGETS, judge_targets
from cosmos3_serve.errors import UsageError
from cosmos3_serve.weights.blockworld import BLOCKWORLD

RAY_SERVE: Final = "cosmos3-ray-serve"
TIMEOUT_S: Final = 3600.0
PASS: Final = "PASS"
FAIL: Final = "FAIL"

# Two samples, so that they can share a batch; few steps, since it is a smoke and no benchmark. Whether such a picture
# is right nobody can measure; with the block-world model it can be, and `golden_blockworld` has its samples.
SAMPLES: Final[list[dict[str, Any]]] = [
    {"name": "golden-a", "prompt": "a robot workcell", "seed": 17, "model_mode": "text2image"},
    {"name": "golden-b", "prompt": "a warehouse aisle", "seed": 23, "model_mode": "text2image"},
]
FIELDS: Final[dict[str, Any]] = {"num_steps": 4, "num_frames": 1}

# Why a run that went through is not the production's: in this order they make the status.
QUALIFIERS: Final[dict[str, str]] = {
    "DIFFUSERS": "another engine than the pinned framework ran",
    "RANDOM": "the weights are random",
    "BLOCKWORLD": "the weights are those of the small block-world model",
    "WEIGHTS_UNKNOWN": "nobody says what the weights are",
    "UNGUARDED": "guardrails were off",
    "GUARDRAILS_UNPROVEN": "guardrails are configured, but the service shows no record that they were applied",
    "CPU": "no GPU ran",
    "GPU_UNKNOWN": "the service does not say which device ran",
    "GPU_FORCED": "the GPU is no target of the service; the start was forced",
}


def samples(weights: object) -> list[dict[str, Any]]:
    """What a service is asked whose `/ready` says `weights`."""
    if weights == BLOCKWORLD:
        return golden_blockworld.samples()
    return [sample | FIELDS for sample in SAMPLES]


def request(weights: object = None) -> dict[str, Any]:
    """The batch that a golden run submits."""
    return {"samples": samples(weights)}


def entry(name: str) -> dict[str, Any]:
    """What `golden-eval show` prints.

    Raises:
        UsageError: no such evaluation.
    """
    if name != RAY_SERVE:
        raise UsageError(f"no golden evaluation is called {name[:60]!r}", remedy=f"use {RAY_SERVE}")
    targets = {target: judge_targets("framework", [_capability(target)]) for target in TARGETS}
    proven = [target for target, verdict in targets.items() if verdict.supported]
    return {
        "name": RAY_SERVE,
        "image": "npa-cosmos3-ray-serve",
        "dockerfile": "containers/generator-framework.Dockerfile",
        "foundation": "NVIDIA Cosmos3-Nano by the pinned cosmos-framework, on Ray Serve",
        "physical_ai": "synthetic images and video from text, images, video and actions",
        "safety": {
            "runs_as": "an unprivileged user",
            "network": "authenticated native Ray Serve API :8000",
            "external_fetch": "huggingface-models-and-guardrails",
        },
        "golden_eval": {
            "kind": "server-smoke",
            "command": f"cosmos3 golden-eval run {RAY_SERVE}",
            "gpu": "required",
            "targets": {target: verdict.status.value for target, verdict in targets.items()},
            "timeout_seconds": int(TIMEOUT_S),
            "status": f"proven on {', '.join(proven)}" if proven else "unproven",
            "module": "cosmos3_serve.checks.golden",
            "env_module": None,
            "artifact": "provenance.json",
            "samples": samples(None),
            "samples_of_blockworld": samples(BLOCKWORLD),
            "requires": [
                *("status completed", "batch_size 2", "guardrails as the service has them configured"),
                *("max_batch_size at least 2", "two images that PIL verifies, equal to their declared hashes"),
                "of the block-world model instead: batch_size 4, and two pictures and two clips whose pixels show what"
                " was asked for: colours, shapes, count, direction of motion",
            ],
            "qualifiers": dict(QUALIFIERS),
        },
    }


def _capability(target: str) -> str:
    digits = target.removeprefix("sm_")
    return f"{digits[:-1]}.{digits[-1]}"
