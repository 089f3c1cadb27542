"""How a stored frame is shown: turned and mirrored by its display matrix, with square pixels."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from cosmos3_serve.media.refusal import COMMAND, broken

Pixels = np.ndarray[Any, np.dtype[np.uint8]]  # [H, W, 3], or [T, H, W, 3]
Matrix = tuple[int, int, int, int]

UPRIGHT: Matrix = (1, 0, 0, 1)
# (a, b, c, d) of a display matrix -> (degrees counter-clockwise, mirrored left to right first)
TURNS: dict[Matrix, tuple[int, bool]] = {
    (1, 0, 0, 1): (0, False),
    (0, -1, 1, 0): (90, False),
    (-1, 0, 0, -1): (180, False),
    (0, 1, -1, 0): (270, False),
    (-1, 0, 0, 1): (0, True),
    (0, 1, 1, 0): (90, True),
    (1, 0, 0, -1): (180, True),
    (0, -1, -1, 0): (270, True),
}
SQUARE = Fraction(1)
MAX_SQUEEZE = 20  # width to height of one pixel, either way: beyond, the container's number is no ratio
SQUARE_COMMAND = "ffmpeg -i INPUT -vf setsar=1 -c:v libx264 -movflags +faststart OUTPUT.mp4"


@dataclass(frozen=True, slots=True)
class Geometry:
    """
    Args:
        matrix: (a, b, c, d) of the display matrix.
        aspect: width to height of one stored pixel.
    """

    matrix: Matrix = UPRIGHT
    aspect: Fraction = SQUARE

    @property
    def rotation(self) -> int:
        return TURNS[self.matrix][0]

    @property
    def mirrored(self) -> bool:
        return TURNS[self.matrix][1]

    @property
    def plain(self) -> bool:
        return self.matrix == UPRIGHT and self.aspect == SQUARE

    def squared(self, width: int, height: int) -> tuple[int, int]:
        """The stored size with square pixels: the squeezed side is stretched, no row or column is lost."""
        if self.aspect > 1:
            return max(1, round(width * self.aspect)), height
        return width, max(1, round(height / self.aspect))

    def shown(self, width: int, height: int) -> tuple[int, int]:
        """Width and height as shown, of a stored width and height."""
        wide, high = self.squared(width, height)
        return (high, wide) if self.rotation % 180 else (wide, high)

    def upright(self, rgb: Pixels) -> Pixels:
        """[H, W, 3] as stored to [H, W, 3] as shown."""
        height, width = rgb.shape[:2]
        size = self.squared(width, height)
        if size != (width, height):
            from PIL import Image

            rgb = np.asarray(Image.fromarray(rgb).resize(size, Image.Resampling.BICUBIC), dtype=np.uint8)
        turned: Pixels = np.fliplr(rgb) if self.mirrored else rgb
        return np.rot90(turned, self.rotation // 90) if self.rotation else turned

    @property
    def conversions(self) -> tuple[str, ...]:
        done = []
        if self.aspect != SQUARE:
            done.append(f"stretched from pixels of {self.aspect.numerator}:{self.aspect.denominator} to square ones")
        if self.mirrored:
            done.append("mirrored")
        if self.rotation:
            done.append(f"turned by {self.rotation} degrees")
        return tuple(done)


def of_frame(frame: Any, aspect: Fraction | None) -> Geometry:
    """
    Args:
        frame: the first decoded one; FFmpeg attaches the display matrix to it.
        aspect: of one pixel, as container or codec declare it.

    Raises:
        Refused: the matrix is no quarter turn, or the aspect no ratio.
    """
    return Geometry(_matrix(frame.side_data.get("DISPLAYMATRIX")), checked(aspect))


def checked(aspect: Fraction | None) -> Fraction:
    """
    Raises:
        Refused: `media_aspect_extreme`.
    """
    if not aspect or aspect <= 0:
        return SQUARE
    if max(aspect, 1 / aspect) > MAX_SQUEEZE:
        raise broken(
            "media_aspect_extreme",
            f"the video declares pixels of {aspect.numerator}:{aspect.denominator}, width to height",
            f"say what they are: {SQUARE_COMMAND}",
        )
    return Fraction(aspect)


def _matrix(data: Any) -> Matrix:
    if data is None:
        return UPRIGHT
    a, b, _, c, d, *_ = struct.unpack("<9i", bytes(data))
    scale = max(map(abs, (a, b, c, d))) or 1
    unit = tuple(round(v / scale) if abs(abs(v) / scale - round(abs(v) / scale)) < 0.01 else 9 for v in (a, b, c, d))
    if unit not in TURNS:
        raise broken("media_rotation_unsupported", "the video's rotation is not a multiple of 90 degrees", COMMAND)
    return unit
