"""The frames of a synthetic clip: moving shapes whose colours, paths and label come from the clip's number."""

from __future__ import annotations

import random
from collections.abc import Iterator

from PIL import Image, ImageDraw

SHAPES = 6


def frames(number: int, count: int, size: tuple[int, int]) -> Iterator[Image.Image]:
    """`count` RGB pictures of `size` (width, height) pixels; another `number` is another clip in every frame."""
    choice = random.Random(f"cosmos3-bench-{number}")
    width, height = size
    ground = _colour(choice, 16, 96)
    shapes = [
        (
            choice.choice(("rectangle", "ellipse")),
            _colour(choice, 96, 255),
            choice.uniform(0.06, 0.18) * height,
            (choice.uniform(0, width), choice.uniform(0, height)),
            (choice.uniform(-12, 12), choice.uniform(-8, 8)),
        )
        for _ in range(SHAPES)
    ]
    for index in range(count):
        picture = Image.new("RGB", size, ground)
        draw = ImageDraw.Draw(picture)
        for kind, colour, half, start, speed in shapes:
            x, y = (start[0] + index * speed[0]) % width, (start[1] + index * speed[1]) % height
            getattr(draw, kind)((x - half, y - half, x + half, y + half), fill=colour)
        draw.text((8, 8), f"clip {number:05d} frame {index:03d}", fill=(255, 255, 255))
        yield picture


def _colour(choice: random.Random, low: int, high: int) -> tuple[int, int, int]:
    return choice.randint(low, high), choice.randint(low, high), choice.randint(low, high)
