"""A sample that asks for a scene: its prompt, and whether its picture or clip shows what was asked.

Only the judging loads numpy.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from cosmos3_serve.blockworld import words
from cosmos3_serve.blockworld.scene import Scene

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
