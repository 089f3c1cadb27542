"""What a picture or clip shows, told from its pixels alone: hue masks, connected components, outlines, centroids.

Nothing here knows the model or the scene that a clip was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cosmos3_serve.blockworld.scene import COLOURS, SHAPES

Pixels = Any  # numpy arrays of uint8, of bool
Mask = Any

HUES = (0.0, 131.0, 225.0, 50.0, 279.0, 184.0)  # degrees, of COLOURS
MIN_SATURATION, MIN_VALUE = 0.42, 0.2
MIN_AREA = 0.0022  # of the picture
MOVED_X, MOVED_Y = 0.12, 0.1  # of the picture's width and height
TURNED = 0.5  # mean change of luminance inside a still outline, per cent of full scale and frame


@dataclass(frozen=True)
class Seen:
    """One object of one picture: centre in fractions of the picture, area in pixels, and its outline."""

    colour: str
    shape: str
    x: float
    y: float
    area: int
    mask: Mask

    @property
    def name(self) -> tuple[str, str]:
        return self.colour, self.shape


def objects(picture: Pixels) -> list[Seen]:
    """Objects of a picture [height, width, 3], from left to right."""
    height, width = picture.shape[:2]
    nearest = _nearest_colour(picture)
    found = []
    for index, colour in enumerate(COLOURS):
        for mask in components(nearest == index):
            area = int(mask.sum())
            if area < MIN_AREA * height * width:
                continue
            ys, xs = np.nonzero(mask)
            x, y = float(xs.mean() + 0.5) / width, float(ys.mean() + 0.5) / height
            found.append(Seen(colour, shape_of(mask), x, y, area, mask))
    return sorted(found, key=lambda seen: seen.x)


def _nearest_colour(picture: Pixels) -> Any:
    """For each pixel the index of the colour whose hue lies nearest, -1 where there is no hue."""
    rgb = picture.astype(np.float32) / 255
    most, least = rgb.max(-1), rgb.min(-1)
    chroma = most - least
    nearest = np.full(most.shape, -1, np.int64)
    coloured = (chroma > MIN_SATURATION * most) & (most > MIN_VALUE)
    r, g, b = (rgb[..., c][coloured] for c in range(3))
    top, spread = most[coloured], chroma[coloured]
    hue = 60 * np.where(top == r, (g - b) / spread % 6, np.where(top == g, (b - r) / spread + 2, (r - g) / spread + 4))
    away = np.abs((hue[:, None] - np.array(HUES, np.float32) + 180) % 360 - 180)
    nearest[coloured] = away.argmin(1)
    return nearest


def components(mask: Mask) -> list[Mask]:
    """Connected regions (four neighbours) of a mask, by runs of its rows."""
    parent: list[int] = []
    runs: list[tuple[int, int, int, int]] = []  # row, first, after last, label

    def root(label: int) -> int:
        while parent[label] != label:
            parent[label] = parent[parent[label]]
            label = parent[label]
        return label

    above: list[tuple[int, int, int, int]] = []
    for row in np.flatnonzero(mask.any(1)).tolist():
        edges = np.flatnonzero(np.diff(np.concatenate(([0], mask[row].astype(np.int8), [0]))))
        here = []
        for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            touching = [r for r in above if r[0] == row - 1 and r[1] < last and first < r[2]]
            if touching:
                label = root(touching[0][3])
                for other in touching[1:]:
                    parent[root(other[3])] = label
            else:
                label = len(parent)
                parent.append(label)
            here.append((row, first, last, label))
        runs += here
        above = here
    regions: dict[int, Mask] = {}
    for row, first, last, label in runs:
        region = regions.setdefault(root(label), np.zeros_like(mask))
        region[row, first:last] = True
    return list(regions.values())


def shape_of(mask: Mask) -> str:
    """The shape whose outline a region has: what its rows' widths say."""
    rows = np.flatnonzero(mask.any(1))
    widths = mask[rows[0] : rows[-1] + 1].sum(1).astype(np.float32)
    high, wide = len(widths), float(widths.max())
    edge = max(1, round(0.14 * high))
    top, bottom = float(widths[:edge].mean()) / wide, float(widths[-edge:].mean()) / wide
    middle = float(widths[high // 2 - 1 : high // 2 + 2].mean()) / wide
    if bottom - top > 0.3 and middle < 0.8:
        return SHAPES[3]
    if high / wide > 1.45:
        return SHAPES[2]
    return SHAPES[0] if top + bottom < 1.5 else SHAPES[1]


@dataclass(frozen=True)
class Track:
    """One object through a clip: its name, and centroids [frames, 2] (x, y) in fractions of the picture."""

    colour: str
    shape: str
    path: Any
    change: float

    @property
    def motion(self) -> str:
        """`slides to the left`, `slides to the right`, `falls`, `bounces`, `turns` or `stands still`."""
        across = float(self.path[-1, 0] - self.path[0, 0])
        y = self.path[:, 1]
        if abs(across) > MOVED_X:
            return f"slides to the {'left' if across < 0 else 'right'}"
        if y[-1] - y[0] > MOVED_Y:
            return "falls"
        if float(y.max() - y.min()) > MOVED_Y:
            return "bounces"
        return "turns" if self.change > TURNED else "stands still"


def tracks(frames: Pixels) -> list[Track]:
    """Objects of a clip [frames, height, width, 3]: those of the first frame, followed by colour and nearness.

    An object that cannot be found in every frame has no track.
    """
    per_frame = [objects(frame) for frame in frames]
    found = []
    for first in per_frame[0]:
        chain = [first]
        for seen in per_frame[1:]:
            last = chain[-1]
            same = [s for s in seen if s.colour == first.colour and 0.4 < s.area / last.area < 2.5]
            if not same:
                break
            chain.append(min(same, key=lambda s: (s.x - last.x) ** 2 + (s.y - last.y) ** 2))
        if len(chain) < len(frames):
            continue
        shapes = [seen.shape for seen in chain]
        path = np.array([(seen.x, seen.y) for seen in chain], np.float32)
        found.append(Track(first.colour, max(set(shapes), key=shapes.count), path, _change(frames, chain)))
    return found


def _change(frames: Pixels, chain: Sequence[Seen]) -> float:
    """Mean change of luminance from frame to frame inside the outlines, in per cent of full scale."""
    changes = []
    for before, after, one, other in zip(frames[:-1], frames[1:], chain[:-1], chain[1:], strict=True):
        inside = one.mask & other.mask
        if inside.any():
            difference = before[inside].astype(np.float32).mean(-1) - after[inside].astype(np.float32).mean(-1)
            changes.append(float(np.abs(difference).mean()) / 2.55)
    return float(np.mean(changes)) * (len(frames) - 1) / 8 if changes else 0.0


def psnr(one: Pixels, other: Pixels) -> float:
    """Peak signal-to-noise ratio of two pictures or clips, dB."""
    error = float(((one.astype(np.float32) - other.astype(np.float32)) ** 2).mean())
    return float(10 * np.log10(255**2 / max(error, 1e-6)))
