"""Quality gates: a path through an engine keeps the score that the plain path has on a fixed set of prompts.

What is right is measured by code that knows no model (`cosmos3_serve.blockworld`), and the plain path is measured in
the same run: a gate holds for any checkpoint of this world.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from support.engine import generate, make_job

from cosmos3_serve.blockworld import score, words
from cosmos3_serve.blockworld.files import decode
from cosmos3_serve.blockworld.scene import Scene, sample_scene
from cosmos3_serve.generator.engines.diffusers.engine import DiffusersEngine

Verdicts = Mapping[str, bool]  # sample -> whether it shows what it was asked for


@dataclass(frozen=True)
class Gate:
    """
    Args:
        lost: so many samples fewer than of the plain path may be right. Two that are swapped are two lost.
        floor: share that the plain path must get right: where nothing is right nothing can be lost.
    """

    lost: int = 1
    floor: float = 0.5

    def check(self, plain: Verdicts, path: Verdicts) -> None:
        """AssertionError, with the samples' names, if the path's score is below its interval."""
        assert plain.keys() == path.keys()
        right, kept = sum(plain.values()), sum(path.values())
        assert right >= self.floor * len(plain), f"the plain path itself gets {right} of {len(plain)} right"
        worse = [name for name, good in plain.items() if good and not path[name]]
        assert kept >= right - self.lost, f"{kept} of {len(plain)} are right, plainly {right}; wrong here: {worse}"


@dataclass(frozen=True)
class Asked:
    """A prompt of the fixed set: what it says, and what is looked for."""

    scene: Scene
    prompt: str


PICTURES = {"model_mode": "text2image", "num_steps": 8, "resolution": "256", "aspect_ratio": "1,1"}
CLIPS = {"model_mode": "text2video", "num_steps": 12, "num_frames": 9, "fps": 24, "resolution": "256"}


def prompts(count: int, *, moving: bool, seed: int) -> dict[str, Asked]:
    """Held-out scenes, each with a caption; clips have at least one event, all differ in what is looked for."""
    rng = random.Random(seed)
    found: dict[str, Asked] = {}
    seen: set[str] = set()
    while len(found) < count:
        scene = sample_scene(rng, moving=moving, held_out=True)
        sought = repr(sorted(looked_for(scene)))
        if (scene.events or not moving) and sought not in seen:
            seen.add(sought)
            found[f"{'clip' if moving else 'picture'}-{len(found)}"] = Asked(scene, words.caption(scene, rng))
    return found


def looked_for(scene: Scene) -> list[Any]:
    """What the measures compare."""
    return [(words.name_of(scene, e.thing), words.deed(scene, e)) for e in scene.events] or score.names(scene)


def in_waves(engine: DiffusersEngine, root: Path, request_id: str, asked: Mapping[str, Asked], size: int) -> Verdicts:
    """Generate all prompts in waves of `size` samples, and judge what was written."""
    verdicts: dict[str, bool] = {}
    names = list(asked)
    for at in range(0, len(names), size):
        wave = names[at : at + size]
        jobs = [
            make_job(
                root,
                name,
                request_id=request_id,
                seed=100 + names.index(name),
                prompt=asked[name].prompt,
                **(CLIPS if asked[name].scene.events else PICTURES),
            )
            for name in wave
        ]
        for result in generate(engine, *jobs):
            assert result.error is None, result.error
        verdicts |= {job.name: shows(asked[job.name].scene, Path(job.output_dir)) for job in jobs}
    return verdicts


def shows(scene: Scene, folder: Path) -> bool:
    (file,) = [path for path in folder.iterdir() if path.suffix in (".jpg", ".mp4")]
    frames = decode(file)
    return score.clip_shows(scene, frames) if scene.events else score.picture_shows(scene, frames[0])


def swapped(asked: Mapping[str, Asked], pair: Sequence[str]) -> dict[str, Asked]:
    """The same prompts, two of them exchanged; what is looked for stays."""
    one, other = pair
    return {
        **asked,
        one: replace(asked[one], prompt=asked[other].prompt),
        other: replace(asked[other], prompt=asked[one].prompt),
    }


def two_right(verdicts: Verdicts) -> tuple[str, str]:
    """The first two samples that the plain path gets right."""
    one, other, *_ = [name for name, right in verdicts.items() if right]
    return one, other
