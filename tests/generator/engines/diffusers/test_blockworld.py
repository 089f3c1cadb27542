"""Prompts reach their own samples: pictures of the block-world model, judged by their pixels alone.

Only colours and counts are judged, which this checkpoint gets right; its shapes are soft (models/blockworld/README.md).
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.engine import generate, make_job

from cosmos3_serve.blockworld import measure
from cosmos3_serve.generator.engines.diffusers.engine import DiffusersEngine
from cosmos3_serve.weights.checkpoint import resolve_checkpoint

PROMPTS = {
    "cyan": "A large cyan cylinder in the centre at the back.",
    "yellow": "A large yellow cube on the left at the front.",
    "purple": "A large purple sphere on the right at the front.",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blockworld")


@pytest.fixture(scope="module")
def engine(root: Path) -> DiffusersEngine:
    checkpoint = resolve_checkpoint("blockworld", root)
    return DiffusersEngine(checkpoint, output_root=root, guardrails=None, device="cpu", threads=1)


def colours(engine: DiffusersEngine, root: Path, prompts: dict[str, str], request_id: str) -> dict[str, list[str]]:
    """Of the objects that each sample's picture shows; the samples are one wave."""
    fields: dict[str, Any] = {"model_mode": "text2image", "num_steps": 12, "resolution": "256"}
    jobs = [make_job(root, name, request_id=request_id, prompt=said, **fields) for name, said in prompts.items()]
    generate(engine, *jobs)
    seen = {}
    for job in jobs:
        (file,) = Path(job.output_dir).glob("*.jpg")
        seen[job.name] = [found.colour for found in measure.objects(np.asarray(Image.open(file).convert("RGB")))]
    return seen


def test_every_sample_of_a_wave_shows_its_own_prompt(engine: DiffusersEngine, root: Path) -> None:
    assert colours(engine, root, PROMPTS, "own") == {name: [name] for name in PROMPTS}


def test_two_prompts_that_are_swapped_are_seen_in_the_pictures(engine: DiffusersEngine, root: Path) -> None:
    swapped = {"cyan": PROMPTS["yellow"], "yellow": PROMPTS["cyan"]}
    assert colours(engine, root, swapped, "swapped") == {"cyan": ["yellow"], "yellow": ["cyan"]}
