"""Stage 1: the video codec, on crops of drawn clips. Leaves `vae.pt`: weights, and mean and deviation of its latents."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import layout
import numpy as np
import pools
import torch
import torch.nn.functional as F
from common import Average, Clock, Log, adam, autocast, device, half, on, pictures, save
from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify

Tensor = torch.Tensor


def fast() -> None:
    """Make the stock modules train faster on a GPU, with the same results: a convolution over three frames as one over
    pictures with the frames' channels side by side, and the norm in one kernel."""
    from diffusers.models.autoencoders import autoencoder_kl_wan as wan

    def conv(self: Any, x: Tensor, cache_x: Tensor | None = None) -> Tensor:
        taps, stride = self.kernel_size[0], self.stride[0]
        front = self._padding[4]
        if cache_x is not None and front > 0:
            x, front = torch.cat([cache_x.to(x.device), x], 2), front - cache_x.shape[2]
        b, _, t, h, w = x.shape
        weight = self.weight
        if t == 1 and front == taps - 1 and taps > 1:
            weight, taps, front = weight[:, :, -1:], 1, 0  # what is before a single frame is zero
        if front:
            x = torch.cat([x.new_zeros(b, x.shape[1], front, h, w), x], 2)
        count = (x.shape[2] - taps) // stride + 1
        wide = (
            torch.cat([x[:, :, j : j + stride * (count - 1) + 1 : stride] for j in range(taps)], 1) if taps > 1 else x
        )
        flat = wide.transpose(1, 2).flatten(0, 1).contiguous(memory_format=torch.channels_last)
        weight = weight.transpose(1, 2).flatten(1, 2)
        out = F.conv2d(flat, weight, self.bias, padding=(self._padding[2], self._padding[0]))
        return out.unflatten(0, (b, count)).transpose(1, 2)

    def norm(self: Any, x: Tensor) -> Tensor:
        y = F.rms_norm(x.movedim(1, -1), (x.shape[1],), self.gamma.flatten().to(x.dtype), 1e-12)
        return y.movedim(-1, 1)

    wan.WanCausalConv3d.forward = conv
    wan.WanRMS_norm.forward = norm


def decode(vae: Any, z: Tensor) -> Tensor:
    """As the stock module decodes, without its last clamp, which would stop gradients."""
    vae.clear_cache()
    x = vae.post_quant_conv(z)
    out = []
    for i in range(z.shape[2]):
        vae._conv_idx = [0]
        more: dict[str, Any] = {"first_chunk": True} if i == 0 else {}
        out.append(vae.decoder(x[:, :, i : i + 1], feat_cache=vae._feat_map, feat_idx=vae._conv_idx, **more))
    vae.clear_cache()
    return unpatchify(torch.cat(out, 2), 2)


def encode(vae: Any, pixels: Tensor) -> Tensor:
    """Mean and log-variance [B, 2C, t, h, w] of pixels [B, 3, T, H, W] in -1..1."""
    out: Tensor = vae._encode(pixels)
    return out


def to_pixels(frames: Tensor) -> Tensor:
    """[B, F, H, W, 3] in 0..1 to [B, 3, F, H, W] in -1..1."""
    return frames.permute(0, 4, 1, 2, 3) * 2 - 1


@torch.no_grad()
def latents(vae: Any, frames: Tensor) -> Tensor:
    with autocast():
        return encode(vae, to_pixels(frames)).float().chunk(2, 1)[0]


def train(
    out: Path,
    seconds: float,
    *,
    steps: int | None = None,
    scenes: int = 20_000,
    small: bool = False,
    resume: Path | None = None,
) -> None:
    data = pools.prompts(scenes, "scene", 17, (320, 192), 11).state
    grasps = pools.prompts(max(50, scenes // 10), "action", 17, (320, 192), 12).state
    torch.manual_seed(1)
    rng = random.Random(1)
    log = Log(out, "vae")
    state = on(np.concatenate([data, grasps]))
    vae = layout.new_vae().to(device())
    if resume is not None:
        vae.load_state_dict(
            {k: v.float() for k, v in torch.load(resume, map_location="cpu", weights_only=True)["vae"].items()}
        )
    fast()
    rate = 1.5e-3
    optimizer, average = adam(vae.parameters(), rate), None
    pictures(state[:8, 0], pools.SIZES[0])
    clock = Clock(seconds, rate, steps=steps)
    while clock.running():
        frames = rng.choice((1, 1, 5, 9))
        whole = clock.gone > 0.88 and not small  # the last part on whole pictures: attention in the middle sees all
        size = rng.choice(pools.SIZES)
        side = 64 if small else 128
        count = max(2, (16 if small else 768 if not whole else 200) // (frames + 1))
        crop = None if whole else (rng.randrange(size[0] - side + 1), rng.randrange(size[1] - side + 1), side, side)
        pick = torch.randint(0, len(state), (count,), device=state.device)
        first, stride = rng.randrange(17 - frames + 1) if frames < 17 else 0, rng.choice((1, 2)) if frames < 9 else 2
        when = [
            (first + stride * i) % 17 if stride * frames + first <= 17 + stride else first + i for i in range(frames)
        ]
        when = [min(w, 16) for w in when]
        x = pictures(state[pick][:, when].flatten(0, 1), size, crop).unflatten(0, (count, frames))
        target = to_pixels(x)
        clock.tick(optimizer)
        with autocast():
            mean, logvar = encode(vae, target).float().chunk(2, 1)
            logvar = logvar.clamp(-12, 4)
            z = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
            back = decode(vae, z).float()
        colour = (target.amax(1, keepdim=True) - target.amin(1, keepdim=True) > 0.5).float()
        weight = 1 + 2 * colour
        gap = back - target
        loss = (gap.abs() * weight).mean() + 2 * (gap**2 * weight).mean()
        kl = 0.5 * (mean**2 + logvar.exp() - 1 - logvar).mean()
        optimizer.zero_grad(set_to_none=True)
        (loss + 2e-4 * kl).backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        if average is None and clock.gone > 0.3:
            average = Average(vae.parameters(), 0.995)
        elif average is not None:
            average.update()
        log(10.0, step=clock.step, gone=clock.gone, loss=loss, kl=kl, psnr=-10 * torch.log10((gap**2).mean() / 4))
    if average is not None:
        average.swap()
    state = state[:4] if small else state
    mean, std = statistics(vae, state)
    save(out / "vae.pt", vae=half(vae), mean=mean, std=std)
    log(step=clock.step, done=True, psnr=quality(vae, state))


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
            back = decode(vae, latents(vae, x)).float().clamp(-1, 1)
        errors.append(float((back - to_pixels(x)).pow(2).mean()) / 4)
    return float(-10 * torch.log10(torch.tensor(sum(errors) / len(errors))))


def load(path: Path) -> tuple[Any, Tensor, Tensor]:
    """VAE, and mean and deviation [1, C, 1, 1, 1] of its latents."""
    kept = torch.load(path, map_location="cpu", weights_only=True)
    vae = layout.new_vae(kept["mean"], kept["std"])
    vae.load_state_dict({k: v.float() for k, v in kept["vae"].items()})
    vae.to(device()).eval().requires_grad_(False)
    fast()
    shape = (1, -1, 1, 1, 1)
    return (
        vae,
        torch.tensor(kept["mean"], device=device()).view(shape),
        torch.tensor(kept["std"], device=device()).view(shape),
    )
