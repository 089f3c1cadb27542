"""Pictures that say which frame they are and how they lie, and the measures that read it back.

Eight blocks along the top are the frame's number in black and white, least bit first, on the left. Below, on the left,
a patch of one colour, on the right one of another; a white bar at the bottom. Nothing here knows the readers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

WIDTH, HEIGHT = 160, 96
BITS = 8
LEFT, RIGHT = (200, 40, 40), (40, 120, 200)
Pixels = Any


def picture(number: int, width: int = WIDTH, height: int = HEIGHT) -> Pixels:
    """uint8 [H, W, 3]."""
    shown = np.empty((height, width, 3), np.uint8)
    shown[:, : width // 2], shown[:, width // 2 :] = LEFT, RIGHT
    shown[height - height // 8 :] = 255
    top, block = height // 4, width // BITS
    for bit in range(BITS):
        shown[:top, bit * block : (bit + 1) * block if bit < BITS - 1 else width] = 255 if number >> bit & 1 else 0
    return shown


def number_of(shown: Pixels) -> int:
    height, width = shown.shape[:2]
    row = shown[height // 12 : height // 6].astype(float).mean(axis=(0, 2))
    block = width / BITS
    return sum((row[int((bit + 0.3) * block) : int((bit + 0.7) * block)].mean() > 127) << bit for bit in range(BITS))


def patches_of(shown: Pixels) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Mean colours of the left and the right patch."""
    height, width = shown.shape[:2]
    rows = shown[height * 2 // 5 : height * 3 // 5].astype(float)
    sides = rows[:, width // 8 : width * 3 // 8], rows[:, width * 5 // 8 : width * 7 // 8]
    left, right = (tuple(round(v) for v in side.mean(axis=(0, 1))) for side in sides)
    return left, right


def near(found: tuple[int, ...], wanted: tuple[int, ...], by: int) -> bool:
    return all(abs(a - b) <= by for a, b in zip(found, wanted, strict=True))
