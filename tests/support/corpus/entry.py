"""Entry: one file of the corpus, how it is made, and what a reader must say of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from support.corpus.paint import HEIGHT, LEFT, RIGHT, WIDTH


@dataclass(frozen=True)
class Entry:
    """
    Args:
        make: writes the file.
        numbers: of the frames that a player shows, in order; empty where the file is refused.
        times_s: when each is shown, after the first; None: evenly at `fps`.
        start_s: when the first is shown.
        size: (width, height) as shown.
        left, right: the patches' colours as shown, each within `by`.
        refused: the codes, one of which the refusal has; `says`: what it must name.
        reasoner: code with which the reasoner alone refuses it.
        copied: whether the reasoner must make a copy; None: as it likes.
        notes, conversions: words that the record must hold.
    """

    name: str
    make: Callable[[Path], None]
    kind: Literal["image", "video"] = "video"
    numbers: Sequence[int] = ()
    fps: float = 10.0
    times_s: Sequence[float] | None = None
    start_s: float = 0.0
    size: tuple[int, int] = (WIDTH, HEIGHT)
    left: tuple[int, int, int] = LEFT
    right: tuple[int, int, int] = RIGHT
    by: int = 8
    refused: tuple[str, ...] = ()
    says: str = ""
    reasoner: str = ""
    copied: bool | None = None
    notes: str = ""
    conversions: str = ""

    @property
    def times(self) -> list[float]:
        return list(self.times_s) if self.times_s is not None else [n / self.fps for n in range(len(self.numbers))]
