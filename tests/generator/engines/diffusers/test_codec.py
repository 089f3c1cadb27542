"""Latents and pixels: the pipeline's normalization, and two directions that may run at once."""

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from support.engine import components
from support.media import frames

from cosmos3_serve.generator.engines.diffusers.codec import Codec, to_frames, to_pixels


@pytest.fixture(scope="module")
def codec():
    parts = components()
    return Codec(parts.vae, parts.device)


def pixels(count: int, seed: int = 0) -> torch.Tensor:
    return to_pixels(np.roll(frames(count, 64, 48), seed * 7, axis=2))


def test_encode_and_decode_are_those_of_the_pipeline():
    from diffusers import Cosmos3OmniPipeline

    parts = components()
    vae = copy.deepcopy(parts.vae)
    vae.register_to_config(latents_mean=[0.5] * 48, latents_std=[2.0] * 48)  # the tiny model's own change nothing

    class Pipe:
        def __init__(self) -> None:
            self.vae = vae
            self._vae_latents_mean = torch.tensor(vae.config.latents_mean)
            self._vae_latents_inv_std = 1.0 / torch.tensor(vae.config.latents_std)

    codec = Codec(vae, parts.device)
    with torch.inference_mode():
        ours = codec.encode(pixels(5))
        assert torch.equal(ours, Cosmos3OmniPipeline._encode_video(Pipe(), pixels(5)))
        assert torch.equal(codec.decode(ours), vae.decode(ours * 2.0 + 0.5).sample.clamp(-1, 1))


def test_uint8_round_trip_is_exact():
    clip = frames(3, 64, 48)
    assert np.abs(to_frames(to_pixels(clip)).astype(int) - clip).max() <= 1  # fractions are cut off, not rounded
    levels = torch.tensor([-1.0, 0.0, 0.999, 1.0]).view(1, 1, 1, 1, 4).expand(1, 3, 1, 1, 4)
    assert to_frames(levels)[0, 0, :, 0].tolist() == [0, 127, 254, 255]


def test_both_directions_at_once(codec):
    """The VAE keeps its causal cache on itself: run plainly, one direction clears the other's in the middle."""
    clips = [pixels(9, seed) for seed in range(3)]
    with torch.inference_mode():
        latents = [codec.encode(clip) for clip in clips]
        decoded = [codec.decode(z) for z in latents]

    def encode(i: int) -> Any:
        with torch.inference_mode():
            return codec.encode(clips[i % 3])

    def decode(i: int) -> Any:
        with torch.inference_mode():
            return codec.decode(latents[i % 3])

    with ThreadPoolExecutor(4) as pool:
        work = [(i, pool.submit(encode, i), pool.submit(decode, i)) for i in range(6)]
        for i, encoding, decoding in work:
            assert torch.equal(encoding.result(60), latents[i % 3])
            assert torch.equal(decoding.result(60), decoded[i % 3])
