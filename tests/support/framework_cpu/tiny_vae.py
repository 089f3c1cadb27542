"""Test support: upstream's own video autoencoder with few channels, in float32, and random weights for it.

Upstream computes it in bfloat16. A CPU without bfloat16 instructions convolves that one value at a time: ten times the
seconds, and four pictures then need a third of the 300 s that upstream gives a batch.
"""

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

CHANNELS = {"dim": 16, "dec_dim": 16}


@contextlib.contextmanager
def _narrow() -> Iterator[ModuleType]:
    from cosmos_framework.model.generator.tokenizers import wan2pt2_vae_4x16x16 as wan

    wide, wrapper = wan.WanVAE_, wan.WanVAE
    wan.WanVAE_ = functools.partial(wide, **CHANNELS)
    wan.WanVAE = lambda **options: wrapper(**{**options, "dtype": torch.float32})
    try:
        yield wan
    finally:
        wan.WanVAE_, wan.WanVAE = wide, wrapper


def interface(**options: Any) -> Any:
    """What the checkpoint's config names as `_target_`."""
    with _narrow() as wan:
        return wan.Wan2pt2VAEInterface(**options)


def save_random(path: Path) -> None:
    with _narrow() as wan:
        model = wan.WanVAE_(temporal_window={"256": 68, "480": 24, "720": 8}, encode_exact_durations=None)
    for name, parameter in model.named_parameters():
        # Scaled by what a weight sums over, and norms (`gamma`) left at one: a latent then stays visible to the end.
        # With 0.02 for all of them every latent became the same grey picture.
        if name.endswith("weight"):
            torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    torch.save(model.state_dict(), path)
