"""Pixels to latents and back through the VAE.

The VAE keeps its causal cache on itself, so one object cannot encode and decode at once. Two shallow copies share the
weights but not the cache, each behind its own lock: a wave is prepared while the last one is decoded.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch


class Codec:
    def __init__(self, vae: Any, device: torch.device) -> None:
        self._encoder, self._decoder = copy.copy(vae), copy.copy(vae)
        self._encoding, self._decoding = threading.Lock(), threading.Lock()
        self._device = device
        self._dtype: torch.dtype = vae.dtype
        config = vae.config
        self._mean = torch.tensor(config.latents_mean, dtype=self._dtype, device=device).view(1, -1, 1, 1, 1)
        self._inverse_std = 1.0 / torch.tensor(config.latents_std, dtype=self._dtype, device=device).view(
            1, -1, 1, 1, 1
        )

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        """[1, 3, T, H, W] in -1..1 to normalized latents [1, C, t, h, w] float32; the mode, so nothing is drawn."""
        with self._encoding:
            encoded = self._encoder.encode(pixels.to(self._device, self._dtype)).latent_dist.mode()
        return ((encoded - self._mean) * self._inverse_std).contiguous().float()

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Latents [1, C, t, h, w] to pixels [1, 3, T, H, W] float32 in -1..1, on the device."""
        raw = latents.to(self._dtype) / self._inverse_std + self._mean
        with self._decoding:
            pixels: torch.Tensor = self._decoder.decode(raw).sample
        return pixels.float().clamp(-1.0, 1.0)

    @contextmanager
    def quiet(self, *, wait: bool = False) -> Iterator[bool]:
        """Nothing is encoded or decoded while the block runs; without `wait`, False at once if something is."""
        with ExitStack() as held:
            for lock in (self._encoding, self._decoding):
                if not lock.acquire(blocking=wait):
                    yield False
                    return
                held.callback(lock.release)
            yield True


def to_pixels(frames: Any) -> torch.Tensor:
    """Frames [T, H, W, 3] uint8 to [1, 3, T, H, W] float32 in -1..1."""
    pixels = torch.from_numpy(frames).permute(3, 0, 1, 2).unsqueeze(0)
    return pixels.float() / 127.5 - 1.0


def to_frames(pixels: torch.Tensor) -> Any:
    """Pixels [1, 3, T, H, W] in -1..1 to frames [T, H, W, 3] uint8; upstream cuts off fractions, it does not round."""
    scaled = ((pixels[0] + 1.0) / 2.0 * 255.0).to(torch.uint8)
    return scaled.permute(1, 2, 3, 0).contiguous().cpu().numpy()
