"""Test support: upstream's own video autoencoder with few channels, and random weights for it."""

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

CHANNELS = {"dim": 16, "dec_dim": 16}


@contextlib.contextmanager
def _narrow() -> Iterator[ModuleType]:
    from cosmos_framework.model.generator.tokenizers import wan2pt2_vae_4x16x16 as wan

    wide = wan.WanVAE_
    wan.WanVAE_ = functools.partial(wide, **CHANNELS)
    try:
        yield wan
    finally:
        wan.WanVAE_ = wide


def interface(**options: Any) -> Any:
    """What the checkpoint's config names as `_target_`."""
    with _narrow() as wan:
        return wan.Wan2pt2VAEInterface(**options)


def save_random(path: Path) -> None:
    import torch

    with _narrow() as wan:
        model = wan.WanVAE_(temporal_window={"256": 68, "480": 24, "720": 8}, encode_exact_durations=None)
    for _, parameter in model.named_parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.02)
    torch.save(model.state_dict(), path)
