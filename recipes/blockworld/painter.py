"""`draw.paint` as one GPU kernel: training paints millions of pictures. `common.painted` compares the two first."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from cosmos3_serve.blockworld import draw

BLOCK = 1024


@triton.jit
def _clip(x, low, high):
    return tl.minimum(tl.maximum(x, low), high)


@triton.jit
def _thing(fields, palette, r, g, b, x, y, width, height, unit, SLIM: tl.constexpr):
    shape = tl.load(fields)
    which = _clip(tl.load(fields + 1), 0.0, 5.0).to(tl.int32)
    cx, base, ground = tl.load(fields + 2) * width, tl.load(fields + 3) * height, tl.load(fields + 4) * height
    w, yaw = tl.maximum(tl.load(fields + 5), 1.0) * unit, tl.load(fields + 6)
    there = tl.where(shape >= 0, 1.0, 0.0)
    gap = _clip((ground - base) / (0.5 * height), 0.0, 1.0)
    across, down = (x - cx) / (0.62 * w), (y - ground) / (0.16 * w)
    spot = 1 - tl.sqrt(across * across + down * down + 1e-6)
    shade = 1 - there * 0.45 * (1 - 0.7 * gap) * _clip(spot * 2.5, 0.0, 1.0)
    dx, up, half = x - cx, base - y, w / 2
    far = tl.abs(dx)
    # sphere
    rise = up - half
    radius = tl.sqrt(dx * dx + rise * rise + 1e-6)
    nx, ny = dx / half, rise / half
    nz = tl.sqrt(_clip(1 - nx * nx - ny * ny, 0.0, 1.0))
    alpha = _clip(half - radius + 0.5, 0.0, 1.0)
    light = 0.62 + 0.5 * _clip(-0.5 * nx + 0.6 * ny + 0.6 * nz, 0.0, 1.0)
    # cube
    quarter = 1.5707963267948966
    turn = yaw - tl.floor(yaw / quarter) * quarter
    co, si = tl.cos(turn), tl.sin(turn)
    edge = _clip(dx - (co / (co + si) * 2 - 1) * half + 0.5, 0.0, 1.0)
    sides = (0.72 + 0.3 * co) * (1 - edge) + (0.58 + 0.3 * si) * edge
    top = _clip(up - 0.9 * w + 0.5, 0.0, 1.0)
    foot = _clip(up + 0.5, 0.0, 1.0)
    cube = _clip(half - far + 0.5, 0.0, 1.0) * foot * _clip(1.12 * w - up + 0.5, 0.0, 1.0)
    alpha = tl.where(shape == 1.0, cube, alpha)
    light = tl.where(shape == 1.0, sides * (1 - top) + 1.12 * top, light)
    # cylinder
    slim, cap = half * SLIM, 0.13 * w
    body = 1.3 * w - 2 * cap
    over = (tl.maximum(up - cap - body, 0.0) + tl.maximum(cap - up, 0.0)) / cap
    reach = slim * tl.sqrt(_clip(1 - over * over, 0.0, 1.0))
    tube = _clip(reach - far + 0.5, 0.0, 1.0) * foot * _clip(body + 2 * cap - up + 0.5, 0.0, 1.0)
    aside, above = dx / slim, (up - cap - body) / cap
    lid = _clip((1 - tl.sqrt(aside * aside + above * above + 1e-6)) * slim * 0.5 + 0.5, 0.0, 1.0)
    bent = _clip(aside, -1.0, 1.0) * 0.8 + 0.4
    curved = tl.sqrt(_clip(1 - bent * bent, 0.0, 1.0))
    alpha = tl.where(shape == 2.0, tube, alpha)
    light = tl.where(shape == 2.0, (0.68 + 0.34 * curved) * (1 - lid) + 1.14 * lid, light)
    # cone
    high, low = 1.2 * w, 0.12 * w
    slope = half * _clip((high - up) / (high - low), 0.0, 1.0)
    under = tl.maximum(low - up, 0.0) / low
    bow = half * tl.sqrt(_clip(1 - under * under, 0.0, 1.0))
    cone = _clip((tl.minimum(slope, bow) - far) * 0.9 + 0.5, 0.0, 1.0) * foot * _clip(high - up + 0.5, 0.0, 1.0)
    bent = _clip(dx / (slope + 1e-3), -1.0, 1.0) * 0.8 + 0.4
    alpha = tl.where(shape == 3.0, cone, alpha)
    light = tl.where(shape == 3.0, 0.66 + 0.4 * tl.sqrt(_clip(1 - bent * bent, 0.0, 1.0)), light)
    alpha = alpha * there
    r, g, b = r * shade, g * shade, b * shade
    r += (_clip(tl.load(palette + which * 3) * light, 0.0, 1.0) - r) * alpha
    g += (_clip(tl.load(palette + which * 3 + 1) * light, 0.0, 1.0) - g) * alpha
    b += (_clip(tl.load(palette + which * 3 + 2) * light, 0.0, 1.0) - b) * alpha
    return r, g, b


@triton.jit
def _kernel(
    state, palette, out, x0, y0, w, h, width, height, unit, SLIM: tl.constexpr, HORIZON: tl.constexpr,
    FIRST: tl.constexpr, EACH: tl.constexpr, MOST: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    picture = tl.program_id(0)
    at = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    inside = at < w * h
    x, y = (at % w + x0).to(tl.float32) + 0.5, (at // w + y0).to(tl.float32) + 0.5
    row = state + picture * (FIRST + EACH * MOST)
    on_floor = _clip(y - HORIZON * height + 0.5, 0.0, 1.0)
    lit = 0.9 + 0.2 * (y / height - HORIZON) / (1 - HORIZON)
    r = tl.load(row) + (tl.load(row + 3) * lit - tl.load(row)) * on_floor
    g = tl.load(row + 1) + (tl.load(row + 4) * lit - tl.load(row + 1)) * on_floor
    b = tl.load(row + 2) + (tl.load(row + 5) * lit - tl.load(row + 2)) * on_floor
    for k in tl.static_range(MOST):
        r, g, b = _thing(row + FIRST + k * EACH, palette, r, g, b, x, y, width, height, unit, SLIM)
    held_x, held_y = tl.load(row + 6), tl.load(row + 7)
    dx, up = tl.abs(x - held_x * width), held_y * height - y
    rod = _clip(2.5 * unit - dx + 0.5, 0.0, 1.0) * _clip(up - 12 * unit + 0.5, 0.0, 1.0)
    bar = _clip(17 * unit - dx + 0.5, 0.0, 1.0) * _clip(4 * unit - tl.abs(up - 10 * unit) + 0.5, 0.0, 1.0)
    finger = _clip(3 * unit - tl.abs(dx - 14 * unit) + 0.5, 0.0, 1.0)
    finger = finger * _clip(12 * unit - tl.abs(up + 2 * unit) + 0.5, 0.0, 1.0)
    alpha = tl.maximum(tl.maximum(rod, bar), finger) * tl.where(held_y > -0.9, 1.0, 0.0)
    to = out + picture * w * h * 3 + at * 3
    tl.store(to, (_clip(r * (1 - alpha) + 0.2 * alpha, 0.0, 1.0) * 255 + 0.5).to(tl.uint8), inside)
    tl.store(to + 1, (_clip(g * (1 - alpha) + 0.2 * alpha, 0.0, 1.0) * 255 + 0.5).to(tl.uint8), inside)
    tl.store(to + 2, (_clip(b * (1 - alpha) + 0.2 * alpha, 0.0, 1.0) * 255 + 0.5).to(tl.uint8), inside)


_PALETTES: dict[torch.device, torch.Tensor] = {}


def paint(state: torch.Tensor, size: tuple[int, int], crop: tuple[int, int, int, int]) -> torch.Tensor:
    """Pictures [n, h, w, 3] uint8 of state rows [n, fields]; `crop` is x, y, w, h."""
    if state.device not in _PALETTES:
        _PALETTES[state.device] = torch.tensor(draw.RGB, dtype=torch.float32, device=state.device) / 255
    x, y, w, h = crop
    state = state.float().contiguous()
    out = torch.empty(len(state), h, w, 3, dtype=torch.uint8, device=state.device)
    _kernel[(len(state), triton.cdiv(w * h, BLOCK))](
        state, _PALETTES[state.device], out, x, y, w, h, size[0], size[1], (size[0] * size[1]) ** 0.5 / 256,
        SLIM=draw._SLIM, HORIZON=draw.HORIZON, FIRST=draw.SCENE_FIELDS, EACH=draw.THING_FIELDS, MOST=draw.MAX_THINGS,
        SIZE=BLOCK,
    )  # fmt: skip
    return out
