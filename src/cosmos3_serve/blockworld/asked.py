"""A sample that asks for a scene: its prompt, and whether its picture or clip shows what was asked.

Only the judging loads numpy.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from cosmos3_serve.blockworld import words
from cosmos3_serve.blockworld.scene import Scene, sample_scene
from cosmos3_serve.errors import UsageError

Pixels = Any  # numpy arrays of uint8


@dataclass(frozen=True)
class Asked:
    """One sample: its mode, the scene that its prompt describes, and its seed."""

    mode: str
    scene: Scene
    seed: int

    @property
    def prompt(self) -> str:
        """What the scene's caption says, word for word."""
        if self.mode == "forward_dynamics":
            return f"The gripper moves the {words.name_of(self.scene, self.scene.gripper)}."
        return words.caption(self.scene, random.Random(0), full=True)

    def shown(self, frames: Pixels) -> bool | None:
        """Whether frames [frames, height, width, 3] show what was asked for; None where no rule says so."""
        from cosmos3_serve.blockworld import score

        if self.mode == "forward_dynamics":
            return None
        return score.picture_shows(self.scene, frames[0]) if self._still else score.clip_shows(self.scene, frames)

    def fault(self, frames: Pixels) -> str | None:
        """What is shown instead of what was asked for, in words; None where that is shown or no rule says so."""
        from cosmos3_serve.blockworld import score

        if self.shown(frames) is not False:
            return None
        what = "picture" if self._still else "clip"
        seen = score.told(frames[0]) if self._still else score.told_of_clip(frames)
        return f"{self.prompt!r} was asked for, and the {what} shows {seen}"

    @property
    def _still(self) -> bool:
        return self.mode == "text2image"


def held_out(seed: int, *, moving: bool) -> Asked:
    """A picture, or a clip in which something moves, of a scene that no training has seen: the same for the same
    seed."""
    rng = random.Random(f"held-out-{seed}")
    while True:
        scene = sample_scene(rng, moving=moving, held_out=True)
        if scene.events or not moving:
            return Asked("text2video" if moving else "text2image", scene, seed)


def require_measures() -> None:
    """
    Raises:
        UsageError: numpy is missing, without which no picture can be drawn or judged.
    """
    if find_spec("numpy") is None:
        raise UsageError(
            "block-world scenes are drawn and judged with numpy, which is missing",
            remedy="pip install numpy where this command runs",
        )
