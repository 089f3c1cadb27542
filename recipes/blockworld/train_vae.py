"""Stage 1: the video codec, on drawn clips and crops of them.

Leaves `vae.pt`: weights, and mean and deviation of its latents.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import codec
import layout
import numpy as np
import pools
import torch
import torch.nn.functional as F
from common import Average, Clock, Log, adam, autocast, device, half, on, painted, pictures, save
from recorder import Recorder
from torch import Tensor


@dataclass(frozen=True)
class Kind:
    """One layout of a batch: frames of a clip, pictures' size, side of the crops (0: whole), how many, how often."""

    frames: int
    size: tuple[int, int]
    side: int
    count: int
    weight: int


WIDE, SQUARE = pools.SIZES[1], pools.SIZES[0]
KINDS = (
    Kind(1, WIDE, 128, 160, 2),
    Kind(9, WIDE, 128, 32, 4),
    Kind(9, SQUARE, 128, 32, 2),
    Kind(1, SQUARE, 0, 40, 2),
    Kind(1, WIDE, 0, 40, 1),
    Kind(9, WIDE, 0, 10, 6),
    Kind(9, SQUARE, 0, 8, 2),
    Kind(17, WIDE, 0, 5, 2),
)


def decode(vae: Any, z: Tensor) -> Tensor:
    """[B, T, H, W, 3] of latents [B, C, t, h, w], about 0..1."""
    return codec.decode(vae, z)


@torch.no_grad()
def latents(vae: Any, frames: Tensor) -> Tensor:
    """Means [B, C, t, h, w] of frames [B, T, H, W, 3] in 0..1."""
    with autocast():
        return codec.encode(vae, frames)[0].float()


def emphasis(frames: Tensor) -> Tensor:
    """Weight [B, T, H, W, 1] of each pixel: what has a colour, an outline or moves counts more than a plain ground."""
    b, t, h, w, _ = frames.shape
    colour = (frames.amax(-1, keepdim=True) - frames.amin(-1, keepdim=True) > 0.25).float()
    flat = frames.flatten(0, 1).permute(0, 3, 1, 2)
    around = F.max_pool2d(flat, 5, 1, 2) + F.max_pool2d(-flat, 5, 1, 2)
    outline = (around.amax(1) > 0.06).float().view(b, t, h, w, 1)
    moved = (frames.amax(1, keepdim=True) - frames.amin(1, keepdim=True)).amax(-1, keepdim=True)
    return 1 + 2 * colour + 4 * outline + 4 * (moved > 0.05).float()


def difference(back: Tensor, frames: Tensor) -> Tensor:
    """The loss of a reconstruction: of values, and of steps from pixel to pixel so that outlines are sharp."""
    gap, weight = back - frames, emphasis(frames)
    across, down = gap[:, :, :, 1:] - gap[:, :, :, :-1], gap[:, :, 1:] - gap[:, :, :-1]
    steps = (across.abs() * weight[:, :, :, 1:]).mean() + (down.abs() * weight[:, :, 1:]).mean()
    return 2 * (gap.abs() * weight).mean() + 8 * (gap.square() * weight).mean() + 2 * steps


def train(
    out: Path, seconds: float, *, steps: int | None = None, scenes: int = 20_000, small: bool = False,
    resume: Path | None = None, rate: float = 1e-3,
) -> None:  # fmt: skip
    """
    Args:
        small: one scene, few and small crops, for a dry run.
    """
    data = pools.prompts(scenes, "scene", 17, WIDE, 11).state
    grasps = pools.prompts(max(50, scenes // 10), "action", 17, WIDE, 12).state
    torch.manual_seed(1)
    rng = random.Random(1)
    log = Log(out, "vae")
    state = on(np.concatenate([data, grasps]))
    state = state[:1] if small else state
    vae = layout.new_vae().to(device())
    if resume is not None:
        kept = torch.load(resume, map_location="cpu", weights_only=True)["vae"]
        vae.load_state_dict({k: v.float() for k, v in kept.items()})
    learned = list(vae.parameters())

    def loss(inputs: list[Tensor], _: Any) -> Tensor:
        levels, noise, worn = inputs
        frames = levels.float() / 255
        with autocast():
            mean, spread = codec.encode(vae, frames)
            mean, spread = mean.float(), spread.float().clamp(-12, 4)
            # More noise than the encoder asks for: what is generated is never quite what an encoder gives.
            z = mean + noise * (spread.exp() + worn.square().view(-1, 1, 1, 1, 1)).sqrt()
            back = codec.decode(vae, z)
        kl = 0.5 * (mean.square() + spread.exp() - 1 - spread).mean()
        return difference(back, frames) + 4e-4 * kl

    recorder = Recorder(loss, learned)
    optimizer, average = adam(learned, rate), None
    clock = Clock(seconds, rate, steps=steps)
    saved = 0.0
    while clock.running():
        kind = Kind(9, WIDE, 32, 2, 1) if small else rng.choices(KINDS, [k.weight for k in KINDS])[0]
        (width, height), side = kind.size, kind.side
        crop = (
            (rng.randrange(width - side + 1), rng.randrange(height - side + 1), side, side)
            if side
            else (0, 0, width, height)
        )
        pick = torch.randint(0, len(state), (kind.count,), device=state.device)
        when = slice(0, 17, 2) if kind.frames == 9 else slice(0, 17) if kind.frames == 17 else [rng.randrange(17)]
        rows = state[pick][:, when]
        levels = painted(rows.flatten(0, 1), kind.size, crop).unflatten(0, rows.shape[:2])
        shape = (kind.count, 48, (kind.frames - 1) // 4 + 1, crop[3] // 16, crop[2] // 16)
        worn = 0.3 * torch.rand(kind.count, device=state.device)
        clock.tick(optimizer)
        value = recorder.step([levels, torch.randn(shape, device=state.device), worn])
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        if average is None and clock.gone > 0.2:
            average = Average(learned, 0.999)
        elif average is not None:
            average.update()
        if clock.step % 25 == 0:
            log(10.0, step=clock.step, gone=clock.gone, frames=kind.frames, side=side, loss=value)
        if average is not None and clock.running() and clock.gone - saved > 0.25:
            saved = clock.gone
            average.swap()
            mean, std = statistics(vae, state)
            save(out / "vae.pt", vae=half(vae), mean=mean, std=std)
            log(step=clock.step, psnr=quality(vae, state))
            average.swap()
    if average is not None:
        average.swap()
    mean, std = statistics(vae, state)
    save(out / "vae.pt", vae=half(vae), mean=mean, std=std)
    log(step=clock.step, done=True, psnr=quality(vae, state), std=[round(s, 2) for s in std])


@torch.no_grad()
def statistics(vae: Any, state: Tensor) -> tuple[list[float], list[float]]:
    vae.eval()
    seen = []
    for size in pools.SIZES:
        for at in range(0, min(len(state), 512), 64):
            rows = state[at : at + 64, ::2]
            x = pictures(rows.flatten(0, 1), size).unflatten(0, rows.shape[:2])
            seen.append(latents(vae, x).permute(1, 0, 2, 3, 4).flatten(1))
    flat = torch.cat(seen, 1)
    std = flat.std(1)
    # Channels that say little are not blown up to the size of the others.
    std = std.clamp(min=0.25 * float(std.pow(2).mean().sqrt()))
    return [round(v, 5) for v in flat.mean(1).tolist()], [round(v, 5) for v in std.tolist()]


@torch.no_grad()
def quality(vae: Any, state: Tensor) -> float:
    """PSNR, dB, of pictures and clips through the codec."""
    errors = []
    for size in pools.SIZES:
        rows = state[:32, ::2]
        x = pictures(rows.flatten(0, 1), size).unflatten(0, rows.shape[:2])
        with autocast():
            back = codec.decode(vae, latents(vae, x)).clamp(0, 1)
        errors.append(float((back - x).square().mean()))
    return float(-10 * torch.log10(torch.tensor(sum(errors) / len(errors))))


def load(path: Path) -> tuple[Any, Tensor, Tensor]:
    """VAE, and mean and deviation [1, C, 1, 1, 1] of its latents."""
    kept = torch.load(path, map_location="cpu", weights_only=True)
    vae = layout.new_vae(kept["mean"], kept["std"])
    vae.load_state_dict({k: v.float() for k, v in kept["vae"].items()})
    vae.to(device()).eval().requires_grad_(False)
    shape = (1, -1, 1, 1, 1)
    return (
        vae,
        torch.tensor(kept["mean"], device=device()).view(shape),
        torch.tensor(kept["std"], device=device()).view(shape),
    )
