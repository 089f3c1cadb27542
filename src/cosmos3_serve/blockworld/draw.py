"""From a scene to pixels.

`paint` works on numpy arrays and, in training, on tensors of a GPU: it uses only functions of one name in both. Edges
are smooth over one pixel, light comes from the upper left, shadows have no hue. Each shape has its own outline: a disc,
an upright rectangle about as wide as high (cube), a slim one with round ends (cylinder), a triangle (cone).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cosmos3_serve.blockworld.scene import BASE_Y, BOUNCE_HEIGHT, COLUMN_X, FALL_HEIGHT, Event, Scene, Thing

Frames = Any  # numpy arrays of uint8, of float32
Numbers = Any

RGB = ((214, 44, 46), (44, 158, 66), (46, 88, 214), (232, 196, 28), (150, 60, 198), (30, 188, 198))
WIDTHS = (34.0, 60.0)  # pixels of a 256x256 picture
FAR = 0.74
HORIZON = 0.54
MAX_THINGS = 3
# Columns of a state row: wall rgb, floor rgb, gripper x and y (y < 0: none), then for each object: shape (-1: none),
# colour, x, base y, ground y, width, yaw.
SCENE_FIELDS, THING_FIELDS = 8, 7
STATE_FIELDS = SCENE_FIELDS + MAX_THINGS * THING_FIELDS


@dataclass(frozen=True)
class Path:
    """Where a held object goes: offsets (x, y) of the gripper in fractions of the picture, one for each frame."""

    offsets: tuple[tuple[float, float], ...]


def render(scene: Scene, frames: int, width: int, height: int, path: Path | None = None) -> Frames:
    """[frames, height, width, 3] uint8."""
    state = states(scene, progress(frames), path)
    return np.stack([to_uint8(paint(np, row[None], width, height, _grid(width, height))[0]) for row in state])


def progress(frames: int) -> list[float]:
    return [i / (frames - 1) if frames > 1 else 0.0 for i in range(frames)]


def states(scene: Scene, times: Sequence[float], path: Path | None = None) -> Numbers:
    """[len(times), STATE_FIELDS] float32: what `paint` needs of each moment. Far objects come first."""
    order = sorted(range(len(scene.things)), key=lambda i: -scene.things[i].depth)
    rows: Numbers = np.full((len(times), STATE_FIELDS), -1.0, dtype=np.float32)
    rows[:, 0:3], rows[:, 3:6] = scene.wall, scene.floor
    for frame, time in enumerate(times):
        for place, index in enumerate(order):
            thing = scene.things[index]
            offset = path.offsets[frame] if path is not None and index == scene.gripper else (0.0, 0.0)
            x, y, ground, yaw = _pose(thing, scene.event_of(index), time)
            x, y = x + offset[0], y + offset[1]
            at = SCENE_FIELDS + place * THING_FIELDS
            width = WIDTHS[thing.size] * thing.scale * (FAR if thing.depth else 1.0)
            rows[frame, at : at + THING_FIELDS] = (thing.shape, thing.colour, x, y, ground, width, yaw)
            if index == scene.gripper:
                rows[frame, 6:8] = (x, y - _HEIGHTS[thing.shape] * width / 256)
    return rows


def _pose(thing: Thing, event: Event | None, time: float) -> tuple[float, float, float, float]:
    """x, base y, y of the ground below, and yaw at progress `time`."""
    x, ground, yaw, lift = COLUMN_X[thing.column] + thing.dx, BASE_Y[thing.depth] + thing.dy, thing.yaw, 0.0
    if event is not None:
        p = min(1.0, max(0.0, (time - event.start) / (event.end - event.start)))
        if event.motion == 0:
            x += (COLUMN_X[event.to] - COLUMN_X[thing.column]) * p
        elif event.motion == 1:
            lift = FALL_HEIGHT * max(0.0, 1.0 - (p / 0.85) ** 2)
        elif event.motion == 2:
            # a high hop and a lower one
            lift = BOUNCE_HEIGHT * (
                math.sin(math.pi * p / 0.6) if p < 0.6 else 0.6 * math.sin(math.pi * (p - 0.6) / 0.4)
            )
        else:
            yaw += math.pi * p
    return x, ground - lift, ground, yaw


_HEIGHTS = (1.0, 1.12, 1.3, 1.2)  # of each shape, in widths of the object
_SLIM = 0.7  # a cylinder's width in widths of the object


def _grid(width: int, height: int) -> tuple[Numbers, Numbers]:
    x = np.arange(width, dtype=np.float32)[None, None, :] + np.float32(0.5)
    y = np.arange(height, dtype=np.float32)[None, :, None] + np.float32(0.5)
    return x, y


def paint(xp: Any, state: Any, width: int, height: int, grid: tuple[Any, Any], thing: Any = None) -> Any:
    """Pictures [n, height, width, 3], 0..1, of state rows [n, STATE_FIELDS].

    Args:
        xp: numpy or torch.
        grid: pixel centres x [1, 1, width] and y [1, height, 1], of the kind of `state`.
        thing: a compiled `add_thing`.
    """
    x, y = grid
    thing = thing or add_thing
    unit = math.sqrt(width * height) / 256
    on_floor = xp.clip(y - HORIZON * height + 0.5, 0, 1)
    planes = []
    for c in range(3):
        wall, floor = state[:, c, None, None], state[:, 3 + c, None, None]
        # the floor lightens towards the viewer
        planes.append(wall + (floor * (0.9 + 0.2 * (y / height - HORIZON) / (1 - HORIZON)) - wall) * on_floor + 0 * x)
    palette = _like(xp, state, RGB)
    for k in range(MAX_THINGS):
        fields = state[:, SCENE_FIELDS + k * THING_FIELDS :][:, :THING_FIELDS, None, None]
        if xp is np and not bool((fields[:, 0] >= 0).any()):
            continue
        which = xp.clip(fields[:, 1, 0, 0], 0, len(RGB))
        colour = palette[which.astype(np.int64) if xp is np else which.long()]
        planes = thing(xp, planes, fields, colour, x, y, width, height)
    planes = _gripper(xp, planes, state, x, y, width, height, unit)
    return xp.stack(planes, -1)


def add_thing(
    xp: Any, planes: list[Any], fields: Any, colour: Any, x: Any, y: Any, width: int, height: int
) -> list[Any]:
    """Paint one object and its shadow over planes [n, height, width] of red, green and blue."""
    unit = math.sqrt(width * height) / 256
    shape, there = fields[:, 0], fields[:, 0] >= 0
    cx, base, ground = fields[:, 2] * width, fields[:, 3] * height, fields[:, 4] * height
    w, yaw = xp.clip(fields[:, 5], 1.0, 1e4) * unit, fields[:, 6]
    # the shadow: it stays on the floor, and pales as the object rises
    gap = xp.clip((ground - base) / (0.5 * height), 0, 1)
    spot = 1 - xp.sqrt(((x - cx) / (0.62 * w)) ** 2 + ((y - ground) / (0.16 * w)) ** 2 + 1e-6)
    shade = 1 - xp.where(there, 0.45 * (1 - 0.7 * gap) * xp.clip(spot * 2.5, 0, 1), 0 * spot)
    alpha, light = _outline(xp, shape, x - cx, base - y, w, yaw)
    alpha = xp.where(there, alpha, 0 * alpha)
    painted = []
    for c in range(3):
        own = xp.clip(colour[:, c, None, None] * light, 0, 1)
        under = planes[c] * shade
        painted.append(under + (own - under) * alpha)
    return painted


def _outline(xp: Any, shape: Any, dx: Any, up: Any, w: Any, yaw: Any) -> tuple[Any, Any]:
    """Coverage and brightness; `dx` to the right of the object's middle, `up` above its base, in pixels."""
    half = w / 2
    # sphere
    r = xp.sqrt(dx**2 + (up - half) ** 2 + 1e-6)
    nx, ny = dx / half, (up - half) / half
    nz = xp.sqrt(xp.clip(1 - nx**2 - ny**2, 0.0, 1.0))
    alpha = xp.clip(half - r + 0.5, 0, 1)
    light = 0.62 + 0.5 * xp.clip(-0.5 * nx + 0.6 * ny + 0.6 * nz, 0, 1)
    # cube: two faces, split where its edge is, and the top
    turn = yaw - xp.floor(yaw / (math.pi / 2)) * (math.pi / 2)
    co, si = xp.cos(turn), xp.sin(turn)
    split = (co / (co + si) * 2 - 1) * half
    edge = xp.clip(dx - split + 0.5, 0, 1)
    sides = (0.72 + 0.3 * co) * (1 - edge) + (0.58 + 0.3 * si) * edge
    top = xp.clip(up - 0.9 * w + 0.5, 0, 1)
    tall = _HEIGHTS[1] * w
    cube = xp.clip(half - xp.abs(dx) + 0.5, 0, 1) * xp.clip(up + 0.5, 0, 1) * xp.clip(tall - up + 0.5, 0, 1)
    alpha = xp.where(shape == 1, cube, alpha)
    light = xp.where(shape == 1, sides * (1 - top) + 1.12 * top, light)
    # cylinder
    slim, cap = half * _SLIM, 0.13 * w
    body = _HEIGHTS[2] * w - 2 * cap
    over = xp.clip(up - cap - body, 0.0, 1e4) + xp.clip(cap - up, 0.0, 1e4)
    reach = slim * xp.sqrt(xp.clip(1 - (over / cap) ** 2, 0.0, 1.0))
    tube = xp.clip(reach - xp.abs(dx) + 0.5, 0, 1) * xp.clip(up + 0.5, 0, 1) * xp.clip(body + 2 * cap - up + 0.5, 0, 1)
    lid = 1 - xp.sqrt((dx / slim) ** 2 + ((up - cap - body) / cap) ** 2 + 1e-6)
    across = xp.clip(dx / slim, -1, 1)
    round_ = 0.68 + 0.34 * xp.sqrt(xp.clip(1 - (across * 0.8 + 0.4) ** 2, 0.0, 1.0))
    lid = xp.clip(lid * slim * 0.5 + 0.5, 0, 1)
    alpha = xp.where(shape == 2, tube, alpha)
    light = xp.where(shape == 2, round_ * (1 - lid) + 1.14 * lid, light)
    # cone
    high, foot = _HEIGHTS[3] * w, 0.12 * w
    slope = half * xp.clip((high - up) / (high - foot), 0.0, 1.0)
    bow = half * xp.sqrt(xp.clip(1 - (xp.clip(foot - up, 0.0, 1e4) / foot) ** 2, 0.0, 1.0))
    reach = xp.minimum(slope, bow)
    cone = xp.clip((reach - xp.abs(dx)) * 0.9 + 0.5, 0, 1) * xp.clip(up + 0.5, 0, 1) * xp.clip(high - up + 0.5, 0, 1)
    across = xp.clip(dx / (slope + 1e-3), -1, 1)
    alpha = xp.where(shape == 3, cone, alpha)
    light = xp.where(shape == 3, 0.66 + 0.4 * xp.sqrt(xp.clip(1 - (across * 0.8 + 0.4) ** 2, 0.0, 1.0)), light)
    return alpha, light


def _gripper(xp: Any, planes: list[Any], state: Any, x: Any, y: Any, width: int, height: int, unit: float) -> list[Any]:
    """Two dark fingers at the upper end of the held object, on a rod from above."""
    at = state[:, 6:8, None, None]
    there = at[:, 1] > -0.9
    if xp is np and not bool(there.any()):
        return planes
    dx, up = x - at[:, 0] * width, at[:, 1] * height - y  # `up` above the object's upper end
    rod = xp.clip(2.5 * unit - xp.abs(dx) + 0.5, 0, 1) * xp.clip(up - 12 * unit + 0.5, 0, 1)
    bar = xp.clip(17 * unit - xp.abs(dx) + 0.5, 0, 1) * xp.clip(4 * unit - xp.abs(up - 10 * unit) + 0.5, 0, 1)
    finger = xp.clip(3 * unit - xp.abs(xp.abs(dx) - 14 * unit) + 0.5, 0, 1)
    finger = finger * xp.clip(12 * unit - xp.abs(up + 2 * unit) + 0.5, 0, 1)
    alpha = xp.where(there, xp.maximum(xp.maximum(rod, bar), finger), 0 * rod)
    return [plane * (1 - alpha) + 0.2 * alpha for plane in planes]


def _like(xp: Any, state: Any, rgb: Any) -> Any:
    """The palette as an array of the kind of `state`, 0..1."""
    values = [[value / 255 for value in row] for row in rgb]
    return np.array(values, np.float32) if xp is np else xp.tensor(values, dtype=state.dtype, device=state.device)


def to_uint8(picture: Numbers) -> Frames:
    return (np.clip(picture, 0, 1) * 255 + 0.5).astype(np.uint8)
