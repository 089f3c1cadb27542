"""Samples in batches, with the solver, schedule and guidance of the service."""

from __future__ import annotations

from typing import Any

import numpy as np
import pools
import torch
import towers
import train_vae
from common import autocast, device
from torch import Tensor
from train_generator import DOMAIN, prompt

from cosmos3_serve.generator.engines.diffusers.schedule import flow_scheduler


@torch.no_grad()
def generate(
    net: Any, vae: Any, mean: Tensor, std: Tensor, texts: list[str], frames: int, size: tuple[int, int], *,
    steps: int, guidance: float, shift: float, negative: str = "", fps: float = 24, seed: int = 0,
    given: Tensor | None = None, clean: int = 0, actions: Tensor | None = None,
) -> np.ndarray:  # fmt: skip
    """[B, frames, H, W, 3] uint8.

    Args:
        texts: with their sentences about size and duration.
        given: frames [B, frames, H, W, 3] in 0..1, whose first `clean` latent frames are kept.
    """
    count = len(texts)
    generator = torch.Generator(device()).manual_seed(seed)
    shape = (count, 48, (frames - 1) // 4 + 1, size[1] // 16, size[0] // 16)
    x = torch.randn(shape, generator=generator, device=device())
    fixed = None
    if given is not None and clean:
        fixed = ((train_vae.latents(vae, given) - mean) / std)[:, :, :clean]
        x[:, :, :clean] = fixed
    rows = [pools.prompt_ids(text) for text in texts]
    ids = torch.zeros(count, max(map(len, rows)), dtype=torch.long, device=device())
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
    rate = torch.full((count,), float(fps), device=device())
    with autocast():
        said = towers.read_prompts(net, ids, torch.tensor([len(r) for r in rows], device=device()))
        other = prompt(net, negative).expand(count) if guidance != 1.0 else None
        scheduler = flow_scheduler(shift, steps, device())
        for step in scheduler.timesteps:
            sigma = (step.float() / 1000).expand(count)
            v = towers.denoise(net, x, sigma, clean, said, rate, actions, DOMAIN).float()
            if other is not None:
                plain = towers.denoise(net, x, sigma, clean, other, rate, actions, DOMAIN).float()
                v = plain + guidance * (v - plain)
            if fixed is not None:
                v[:, :, :clean] = 0
            x = scheduler.step(v, step, x, return_dict=False)[0]
            if fixed is not None:
                x[:, :, :clean] = fixed
        out = []
        for piece in (x * std + mean).split(32):
            out.append((train_vae.decode(vae, piece).clamp(0, 1) * 255).to(torch.uint8).cpu())
    return torch.cat(out).numpy()
