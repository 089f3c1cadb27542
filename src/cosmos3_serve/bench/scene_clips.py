"""Clips with content: block-world scenes, questions about each, and the right answers; all by the clip's number."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache

from PIL import Image

from cosmos3_serve.blockworld import words
from cosmos3_serve.blockworld.asked import held_out
from cosmos3_serve.blockworld.scene import Scene

# Different questions that every scene has an answer to.
MAX_TURNS = 8


def frames(number: int, count: int, size: tuple[int, int]) -> Iterator[Image.Image]:
    """`count` RGB pictures of `size` (width, height) pixels. Needs numpy."""
    from cosmos3_serve.blockworld import draw

    for picture in draw.render(_scene(number), count, *size):
        yield Image.fromarray(picture)


@lru_cache(maxsize=4096)
def turns(video: str) -> list[words.Turn]:
    """Questions about a clip by its name (`video-00012.mp4`), each of another kind, what happens first."""
    number = int(video.partition(".")[0].removeprefix("video-"))
    asked = words.questions(_scene(number), random.Random(number), video=True)
    return sorted(asked, key=lambda turn: turn.kind != "happens")[:MAX_TURNS]


def _scene(number: int) -> Scene:
    return held_out(number, moving=True).scene
